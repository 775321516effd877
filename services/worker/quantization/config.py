"""Reads from config.json how a checkpoint's matrices are quantized."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.worker.errors import ModelError
from services.worker.quantization.awq import AWQFormat
from services.worker.quantization.compressed_tensors import read_compressed_tensors
from services.worker.quantization.formats import Fp8Format, checked_group_size
from services.worker.quantization.gptq import GPTQFormat
from services.worker.quantization.kv_scheme import read_kv_cache_scheme
from services.worker.quantization.mxfp4 import read_mxfp4
from services.worker.quantization.scheme import BlocksBut, CheckpointQuantization

SUPPORTED = "compressed-tensors (8 bits, 4 bits in groups), fp8, awq and gptq (4 bits), and mxfp4"


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
    if method == "mxfp4":
        return read_mxfp4(settings)
    readers = {"fp8": _read_fp8, "awq": _read_awq, "gptq": _read_gptq}
    if method not in readers:
        raise ModelError(f"{where} is quantized with {method}, which is not supported; supported are {SUPPORTED}")
    return readers[method](where, settings)


def _read_fp8(where: str, settings: Mapping[str, Any]) -> CheckpointQuantization:
    """Reads fp8 settings of vLLM, AutoFP8 and transformers. Ignores static scales of activations, because Quire
    computes finer scales, one per token."""
    if settings.get("weight_block_size"):
        raise ModelError(
            f"{where} has fp8 weights with a scale per block of {settings['weight_block_size']}, which is not "
            "supported; only a scale per tensor or per output is"
        )
    excluded = settings.get("ignored_layers") or settings.get("modules_to_not_convert") or ()
    return CheckpointQuantization(
        "fp8",
        ((BlocksBut(tuple(excluded)), Fp8Format()),),
        ("input_scale",),
        kv_cache=read_kv_cache_scheme(settings),
    )


def _read_awq(where: str, settings: Mapping[str, Any]) -> CheckpointQuantization:
    version = str(settings.get("version") or settings.get("format") or "gemm").lower()
    if version != "gemm":
        raise ModelError(f"{where} is an AWQ checkpoint of version {version}; only gemm is supported")
    if not settings.get("zero_point", True):
        raise ModelError(f"{where} is an AWQ checkpoint without zero points; only those with zero points are supported")
    _check_bits(where, "AWQ", settings)
    excluded = tuple(settings.get("modules_to_not_convert") or ())
    return CheckpointQuantization("awq", ((BlocksBut(excluded), AWQFormat(_group_size(settings))),))


def _read_gptq(where: str, settings: Mapping[str, Any]) -> CheckpointQuantization:
    _check_bits(where, "GPTQ", settings)
    version = settings.get("checkpoint_format") or settings.get("format") or "gptq"
    if version not in ("gptq", "gptq_v2"):
        raise ModelError(f"{where} is a GPTQ checkpoint in {version} format; only gptq and gptq_v2 are supported")
    if settings.get("dynamic"):
        raise ModelError(f"{where} is a GPTQ checkpoint with settings per layer (dynamic), which are not supported")
    form = GPTQFormat(_group_size(settings), zero_points_less_one=version == "gptq")
    # A list of lists of layers. The order of the inner lists only mattered when GPTQ quantized the model.
    included = tuple(name for names in settings.get("modules_in_block_to_quantize") or () for name in _as_list(names))
    selection = BlocksBut(included=included, output_layer=bool(settings.get("lm_head")))
    return CheckpointQuantization("gptq", ((selection, form),), zero_biases=True)


def _check_bits(where: str, method: str, settings: Mapping[str, Any]) -> None:
    bits = settings.get("bits", settings.get("w_bit"))
    if bits != 4:
        raise ModelError(f"{where} is quantized with {method} to {bits} bits; only 4 are supported")


def _group_size(settings: Mapping[str, Any]) -> int | None:
    """Returns the group size; None for -1, which means one group for all inputs of an output."""
    size = settings.get("group_size", settings.get("q_group_size", 128))
    return None if size == -1 else checked_group_size(size)


def _as_list(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else names
