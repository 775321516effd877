"""The forms of weights and pages that the first measurements compare."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.cases import Setting


@dataclass(frozen=True, slots=True)
class Form:
    quantization: str | None  # of --quantization
    kv_cache_dtype: str = "auto"


FORMS = {
    "bf16": Form(None),
    "fp8": Form("fp8", "fp8"),  # weights, activations and pages
    "awq": Form("awq"),  # 4 bits in groups of 128
}


def bench(setting: Setting, form_name: str, shape: str, *worker_arguments: str) -> Bench:
    """On the GPU, or in a dry run on the simulated one with a tiny shape."""
    form = FORMS[form_name]
    return Bench(
        shape, "bfloat16", form.quantization, form.kv_cache_dtype, worker_arguments,
        dry_run=setting.dry_run, simulated=setting.dry_run,
    )  # fmt: skip
