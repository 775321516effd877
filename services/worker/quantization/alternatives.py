"""Methods of quantization that Quire does not support, and what to use instead."""

from __future__ import annotations

_AT_LOAD = "use the unquantized checkpoint, if need be with --quantization"
_ALTERNATIVES = {
    **dict.fromkeys(("bitsandbytes", "hqq", "quip", "quip#", "quip_sharp"), f"{_AT_LOAD} int4 or int8-weight-only"),
    **dict.fromkeys(("squeezellm", "aqlm", "spqr", "vptq"), "use a checkpoint of the same model in AWQ or GPTQ format"),
    **dict.fromkeys(("exl2", "exl3"), "use a checkpoint of the same model in GPTQ or GGUF format"),
    **dict.fromkeys(
        ("nvfp4", "modelopt_fp4", "fp_quant"),
        "use a checkpoint of the same model in fp8, AWQ or GPTQ format, or the unquantized one with --quantization fp8",
    ),
    **dict.fromkeys(("quark", "fbgemm_fp8", "ptpc_fp8"), f"{_AT_LOAD} fp8"),
    **dict.fromkeys(("deepspeedfp", "tpu_int8", "experts_int8", "torchao", "quanto"), f"{_AT_LOAD} int8"),
    "bitnet": "use the model's GGUF file in another type, such as Q4_0",
    "auto-round": "use the model's checkpoint in GPTQ or AWQ format, which AutoRound writes as well",
}


METHODS = tuple(_ALTERNATIVES)


def alternative_to(method: str) -> str:
    """Returns what to use instead of `method`, as the end of a sentence; an empty string for an unknown method."""
    return _ALTERNATIVES.get(method.lower().replace("intel/", ""), "")
