"""The formats of weights and KV pages that `smoke` and `lease` run."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.cases import Setting


@dataclass(frozen=True, slots=True)
class Form:
    quantization: str | None  # value of --quantization
    kv_cache_dtype: str = "auto"
    dtype: str = "bfloat16"


FORMS = {
    "bf16": Form(None),
    "fp8": Form("fp8", "fp8"),  # weights, activations and pages
    "awq": Form("awq"),  # 4 bits in groups of 128
}

# Other supported formats, which `smoke` starts, but which are not measured in the first hour.
MORE_FORMS = {
    "fp16": Form(None, dtype="float16"),
    "fp16 awq": Form("awq", dtype="float16"),
    "gptq": Form("gptq"),
    "int8": Form("int8"),  # weights and activations
    "int8-weight-only": Form("int8-weight-only"),
}


def bench(setting: Setting, form: Form, shape: str, *worker_arguments: str) -> Bench:
    """Returns a Bench on the GPU, or, in a dry run, on the simulated GPU with a tiny shape."""
    return Bench(
        shape, form.dtype, form.quantization, form.kv_cache_dtype, worker_arguments,
        dry_run=setting.dry_run, simulated=setting.dry_run,
    )  # fmt: skip
