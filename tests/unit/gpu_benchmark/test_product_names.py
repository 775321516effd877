"""Products are counted whichever kernel computes them: by the operator that launched it, else by its name."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from benchmarks.gpu.kernels import shares
from benchmarks.gpu.product_names import launched_by_products
from benchmarks.gpu.trace import Activity, group_of

# In the forms that public profiles of A100s and H100s show: cuBLAS, cuBLASLt, and CUTLASS from torch's own library.
PRODUCTS = (
    "void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 128, 16, 4, 4, false>",
    "void gemvNSP_kernel<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 1, 32, 4, 1024>",
    "void internal::gemvx::kernel<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, false, true>",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, true, false>",
    "void splitKreduce_kernel<32, 16, int, float, __half, float, __half, true, true, false>",
    "nvjet_tst_64x8_64x16_4x1_v_bz_splitK_TNT",
    "nvjet_qqtst_128x256_128x4_2x1_v_bz_TNN",
    "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_32x6_tn",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_segment_k_off_kernel",
    "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x32_stage3_warpsize2x2x1",
    "ampere_sgemm_32x128_tn",
    "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x64_32x4_tn_align8",
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>, "
    "cutlass::gemm::collective::CollectiveMma<cutlass::gemm::MainloopSm90TmaGmmaWarpSpecializedFP8<4> > > >",
    "void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensorStridedBatched<__nv_bfloat16 const> > >",
    "eight_bit_kernel", "eight_bit_weights_kernel", "four_bit_kernel", "quantize_rows_kernel",
)  # fmt: skip
OTHERS = {
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16> >": "other",
    "collect_kernel": "sampling",
    "void at::native::(anonymous namespace)::indexSelectSmallIndex<c10::BFloat16, long>": "copies and fills",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_27_64x64x128": "attention",
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_s_kernel_is_known_by_its_name(name: str) -> None:
    assert group_of(name) == "products"


@pytest.mark.parametrize(("name", "group"), OTHERS.items())
def test_others_are_not_taken_for_products(name: str, group: str) -> None:
    assert group_of(name) == group


@dataclass
class Kernel:
    name: str


@dataclass
class Operator:
    name: str
    kernels: list[Kernel] = field(default_factory=list)


def test_a_kernel_with_an_unheard_of_name_counts_by_the_operator_that_launched_it() -> None:
    unknown = "zeus_x9_tile"
    events = [
        Operator("aten::linear"),
        Operator("aten::mm", [Kernel("Memset (Device)"), Kernel(unknown), Kernel("zeus_reduce")]),
        Operator("aten::add", [Kernel("void at::native::vectorized_elementwise_kernel<4>")]),
    ]
    products = launched_by_products(events)
    assert products == {unknown, "zeus_reduce"}
    assert group_of(unknown) == "other"
    ran = [Activity(unknown, 0.0, 30.0), Activity("rms_norm_kernel", 40.0, 50.0)]
    found = {figure.name: figure for figure in shares("a step", ran, 1, {"products": 15.0}, products)}
    assert found["a step: products"].value == 30.0
    assert found["a step: products"].ratio == 0.5
    assert found["a step: norms"].value == 10.0
    assert found["a step: gaps"].value == 10.0
