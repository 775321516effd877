"""Reads from config.json how a checkpoint's matrices are quantized."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import translate
from typing import Any

from services.worker.errors import ModelError
from services.worker.quantization.alternatives import alternative_to
from services.worker.quantization.awq import AWQFormat, AWQGemvFormat
from services.worker.quantization.compressed_tensors import Targets, read_compressed_tensors
from services.worker.quantization.formats import Fp8Format, MatrixFormat, checked_group_size, read_names
from services.worker.quantization.fp8_blocks import block_format
from services.worker.quantization.gptq import BITS, GPTQFormat
from services.worker.quantization.kv_scheme import read_kv_cache_scheme
from services.worker.quantization.mxfp4 import read_mxfp4
from services.worker.quantization.scheme import DENSE, BlocksBut, CheckpointQuantization, Selection

SUPPORTED = "compressed-tensors (8 bits, 4 bits in groups), fp8, modelopt (fp8), awq, gptq and mxfp4"


def read_quantization(where: str, config: Mapping[str, Any]) -> CheckpointQuantization | None:
    """Returns how a checkpoint is quantized; None if nothing is. Raises ModelError for settings that cannot be read.
    `config`: the whole config.json. `where`: its path or name, for the error message."""
    settings = config.get("quantization_config") or config.get("compression_config")
    if not settings:
        return None
    try:
        return _read(where, settings)
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        # The settings have too many fields to check the type of each one, so a wrong type shows as one of these errors.
        raise ModelError(f"quantization_config of {where} cannot be read: {type(error).__name__}: {error}") from error


def _read(where: str, settings: Mapping[str, Any]) -> CheckpointQuantization:
    method = str(settings.get("quant_method") or "an unnamed method")
    if method == "compressed-tensors" or (method == "an unnamed method" and "config_groups" in settings):
        return read_compressed_tensors(where, settings)
    if method == "an unnamed method" and (settings.get("load_in_4bit") or settings.get("load_in_8bit")):
        method = "bitsandbytes"
    if method.startswith("modelopt"):
        return _read_modelopt(where, settings)
    if method == "mxfp4":
        return read_mxfp4(settings)
    readers = {"fp8": _read_fp8, "awq": _read_awq, "gptq": _read_gptq}
    if method not in readers:
        advice = alternative_to(method) or f"supported are {SUPPORTED}"
        raise ModelError(f"{where} is quantized with {method}, which is not supported; {advice}")
    return readers[method](where, settings)


def _read_fp8(where: str, settings: Mapping[str, Any]) -> CheckpointQuantization:
    """Reads fp8 settings of vLLM, AutoFP8 and transformers. Ignores static scales of activations, because Quire
    computes finer scales, one per token."""
    for key, supported in (("fmt", "e4m3"), ("expert_dtype", "fp8")):
        if settings.get(key, supported) != supported:
            raise ModelError(f"{where} has fp8 weights with {key} {settings[key]}; only {supported} is supported")
    if settings.get("modules_to_convert"):
        raise ModelError(f"{where} has further matrices in fp8 (modules_to_convert), which are not supported")
    size = settings.get("weight_block_size")
    form: MatrixFormat = Fp8Format()
    if size is not None:
        form = block_format(size, "weight_scale_inv")
    elif "weight_block_size" in settings:  # written by transformers
        form = Fp8Format(scale="weight_scale_inv")
    excluded = read_names(settings, "ignored_layers", "modules_to_not_convert")
    return CheckpointQuantization(
        "fp8",
        ((BlocksBut(excluded), form),),
        ("input_scale", "activation_scale"),
        kv_cache=read_kv_cache_scheme(settings),
    )


def _read_modelopt(where: str, settings: Mapping[str, Any]) -> CheckpointQuantization:
    """Reads settings of NVIDIA's ModelOpt, which stores fp8 as AutoFP8 does."""
    algorithm = str(settings.get("quant_algo") or "no quant_algo").upper()
    if algorithm != "FP8":
        advice = alternative_to("modelopt_fp4") if "FP4" in algorithm else "only FP8 (a scale per tensor) is supported"
        raise ModelError(f"{where} is quantized with modelopt ({algorithm}), which is not supported; {advice}")
    excluded = read_names(settings, "ignore", "exclude_modules")
    dense = Targets(tuple(f"re:{translate(pattern)}" for pattern in excluded))
    scheme = read_kv_cache_scheme(settings)
    return CheckpointQuantization(
        "modelopt", ((dense, DENSE), (BlocksBut(excluded), Fp8Format())), ("input_scale",), kv_cache=scheme
    )


def _read_awq(where: str, settings: Mapping[str, Any]) -> CheckpointQuantization:
    version = str(settings.get("version") or settings.get("format") or "gemm").lower()
    formats: dict[str, type[AWQFormat | AWQGemvFormat]] = {"gemm": AWQFormat, "gemv": AWQGemvFormat}
    if version not in formats or settings.get("backend") == "llm-awq":
        raise ModelError(
            f"{where} is an AWQ checkpoint of version {version}; only gemm and gemv are supported: use a checkpoint of "
            "the same model in one of them, or in GPTQ format"
        )
    _read_bits(where, "AWQ", settings, (4,))
    excluded = read_names(settings, "modules_to_not_convert")
    # Without zero points (`zero_point` is false), AutoRound stores the middle of the range as each of them.
    return CheckpointQuantization("awq", ((BlocksBut(excluded), formats[version](_group_size(settings))),))


def _read_gptq(where: str, settings: Mapping[str, Any]) -> CheckpointQuantization:
    bits = _read_bits(where, "GPTQ", settings, BITS)
    version = settings.get("checkpoint_format") or settings.get("format") or "gptq"
    if version not in ("gptq", "gptq_v2"):
        raise ModelError(f"{where} is a GPTQ checkpoint in {version} format; only gptq and gptq_v2 are supported")
    if (words := settings.get("pack_dtype") or "int32") != "int32":
        raise ModelError(f"{where} is a GPTQ checkpoint packed into {words}; only int32 is supported")
    form = GPTQFormat(_group_size(settings), version == "gptq", bits)
    # A list of lists of layers. The order of the inner lists only mattered when GPTQ quantized the model.
    included = tuple(name for names in settings.get("modules_in_block_to_quantize") or () for name in _as_list(names))
    blocks = BlocksBut(included=included, output_layer=bool(settings.get("lm_head")))
    rules: list[tuple[Selection, MatrixFormat]] = []
    for pattern, changes in (settings.get("dynamic") or {}).items():
        # GPTQModel's settings of single layers. The first pattern that matches applies; `-:` leaves layers in floats.
        layers = Targets((f"re:{pattern.removeprefix('-:').removeprefix('+:')}",))
        if pattern.startswith("-:"):
            rules.append((layers, DENSE))
        else:
            own = {**settings, **changes}
            rules.append(
                (layers, replace(form, group_size=_group_size(own), bits=_read_bits(where, "GPTQ", own, BITS)))
            )
    return CheckpointQuantization("gptq", (*rules, (blocks, form)), zero_biases=True)


def _read_bits(where: str, method: str, settings: Mapping[str, Any], supported: tuple[int, ...]) -> int:
    bits = settings.get("bits", settings.get("w_bit"))
    if bits not in supported:
        raise ModelError(
            f"{where} is quantized with {method} to {bits} bits; only {', '.join(map(str, supported))} are supported"
        )
    return int(bits)


def _group_size(settings: Mapping[str, Any]) -> int | None:
    """Returns the group size; None for -1, which means one group for all inputs of an output."""
    size = settings.get("group_size", settings.get("q_group_size", 128))
    return None if size == -1 else checked_group_size(size)


def _as_list(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else names
