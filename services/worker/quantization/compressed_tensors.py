"""Checkpoints of llm-compressor: `quantization_config` as the compressed-tensors library writes it.

Each entry of `config_groups` describes how its target layers are quantized. Static scales of activations are ignored,
because Quire computes a scale per token, which is finer. Static scales of the KV cache are read if the cache is in fp8.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import regex

from services.worker.errors import ModelError
from services.worker.quantization.alternatives import alternative_to
from services.worker.quantization.formats import Fp8Format, Int8Format, MatrixFormat, checked_group_size, read_names
from services.worker.quantization.fp8_blocks import block_format
from services.worker.quantization.kv_scheme import read_kv_cache_scheme
from services.worker.quantization.pack_quantized import PackedFormat
from services.worker.quantization.scheme import CheckpointQuantization, is_in_block, is_output_layer

SUPPORTED = (
    "supported are float-quantized (fp8 per tensor, output or block), int-quantized (int8) and "
    "pack-quantized (4 and 8 bits, weights only)"
)
_ALTERNATIVES = {"nvfp4-pack-quantized": alternative_to("nvfp4")}
MATCH_S = 1.0  # real expressions take microseconds
# Limits of a regular expression in characters, with repeated parts written out. Real ones have tens. The regex library
# writes out `(a{1000}){1000}`, which takes gigabytes.
MAX_EXPRESSION_CHARS = 4096
MAX_EXPANDED_CHARS = 100_000
_UNUSED = ("input_scale", "input_zero_point", "output_zero_point", "k_zero_point", "v_zero_point", "weight_shape")


@dataclass(frozen=True, slots=True)
class Targets:
    """Selects layers by full name, by regular expression (`re:...`) or by their class in transformers."""

    targets: tuple[str, ...]
    ignored: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises ValueError for an invalid regular expression."""
        for target in (*self.targets, *self.ignored):
            if target.startswith("re:"):
                _check_expression(target[3:])

    def selects(self, layer: str) -> bool:
        return _matches(self.targets, layer) and not _matches(self.ignored, layer)


def read_compressed_tensors(where: str, settings: Mapping[str, Any]) -> CheckpointQuantization:
    """Reads `settings`, a `quantization_config`. Raises ModelError for settings that are not supported."""
    _refuse_unsupported(where, settings)
    ignored = read_names(settings, "ignore")
    forms: dict[str, MatrixFormat] = {}
    for name, group in (settings.get("config_groups") or {}).items():
        if not isinstance(group, Mapping):
            raise ModelError(f"{where} uses the preset scheme {name}, which is not supported; {SUPPORTED}")
        form = _read_group(where, group, str(group.get("format") or settings.get("format")))
        forms |= dict.fromkeys(read_names(group, "targets"), form)
    # If several targets select a layer, the library takes the most specific one.
    rules = [(Targets((target,), ignored), forms[target]) for target in sorted(forms, key=_least_specific_last)]
    scheme = read_kv_cache_scheme(settings)
    return CheckpointQuantization("compressed-tensors", tuple(rules), _UNUSED, kv_cache=scheme)


def _refuse_unsupported(where: str, settings: Mapping[str, Any]) -> None:
    status = settings.get("quantization_status", "compressed")
    if status != "compressed":
        raise ModelError(f"{where} holds weights in status {status}; only compressed is supported")
    sparsity = (settings.get("sparsity_config") or {}).get("format", "dense")
    if sparsity != "dense":
        raise ModelError(f"{where} is sparse ({sparsity}), which is not supported")
    if settings.get("transform_config"):
        raise ModelError(f"{where} needs transformed activations (transform_config), which are not supported")


def _read_group(where: str, group: Mapping[str, Any], form: str) -> MatrixFormat:
    weights, inputs = group.get("weights") or {}, group.get("input_activations")
    kind, bits = weights.get("type", "int"), weights.get("num_bits", 8)
    strategy, symmetric = weights.get("strategy"), weights.get("symmetric", True)
    group_size = weights.get("group_size")

    def refuse() -> ModelError:
        if form in _ALTERNATIVES:
            return ModelError(f"{where} has {form} weights, which are not supported; {_ALTERNATIVES[form]}")
        return ModelError(
            f"{where} has {form} weights of {bits} bits ({kind}, {'' if symmetric else 'a'}symmetric, by {strategy}), "
            f"with activations {_describe(inputs)}; {SUPPORTED}"
        )

    if group.get("output_activations"):
        raise refuse()
    if form in ("float-quantized", "naive-quantized") and (kind, bits, strategy) == ("float", 8, "block"):
        return block_format(weights.get("block_structure"), "weight_scale")
    if strategy not in ("tensor", "channel", "group"):
        raise refuse()
    if inputs is not None and not (_is_eight_bit(inputs, kind) and bits == 8 and strategy != "group"):
        raise refuse()
    size = checked_group_size(group_size) if strategy == "group" else None
    quantize_activations = inputs is not None
    if form in ("float-quantized", "naive-quantized") and kind == "float" and bits == 8 and size is None:
        return Fp8Format(quantize_activations)
    if form in ("int-quantized", "naive-quantized") and kind == "int" and bits == 8:
        # Activations stay in floats if the weights have zero points. That is more precise.
        return Int8Format(quantize_activations and symmetric, size, symmetric)
    if form == "pack-quantized" and kind == "int" and bits in (4, 8) and not quantize_activations:
        return PackedFormat(bits, size, symmetric)
    raise refuse()


def _is_eight_bit(inputs: Mapping[str, Any], kind: str) -> bool:
    """Returns whether activations are quantized to 8 bits in the type of the weights (`kind`), symmetrically, and per
    token or per tensor. In both cases, Quire quantizes the activations per token."""
    return (
        inputs.get("num_bits", 8) == 8
        and inputs.get("type", "int") == kind
        and inputs.get("symmetric", True)
        and inputs.get("strategy") in ("token", "tensor", None)
    )


def _describe(inputs: Mapping[str, Any] | None) -> str:
    if inputs is None:
        return "as they are"
    symmetry = "" if inputs.get("symmetric", True) else "a"
    return f"of {inputs.get('num_bits', 8)} bits ({inputs.get('type', 'int')}, {symmetry}symmetric)"


def _least_specific_last(target: str) -> tuple[int, str]:
    """Sorts names of layers before regular expressions, and these before names of classes, such as Linear."""
    is_class = "." not in target and target[:1].isupper()
    return (1 if target.startswith("re:") else 2 if is_class else 0), target


def _matches(targets: tuple[str, ...], layer: str) -> bool:
    of_class = "Linear" if is_in_block(layer) or is_output_layer(layer) else "Embedding"
    return any(
        _fits(target[3:], layer) if target.startswith("re:") else target in (layer, of_class) for target in targets
    )


def _check_expression(expression: str) -> None:
    """Raises ValueError for an expression that is invalid or takes too much memory."""
    repeats = (int(count[:9]) for count in re.findall(r"[{,]\s*(\d+)(?=\s*[,}])", expression[:MAX_EXPRESSION_CHARS]))
    expanded = len(expression) * math.prod(max(count, 1) for count in repeats)
    if len(expression) > MAX_EXPRESSION_CHARS or expanded > MAX_EXPANDED_CHARS:
        raise ValueError(f"the regular expression {expression[:64]!r}… is too long or repeats too much")
    try:
        regex.compile(expression)
    except (regex.error, RecursionError) as error:
        raise ValueError(f"{expression[:64]!r} is no regular expression: {error}") from error


def _fits(expression: str, layer: str) -> bool:
    """Returns whether the regular expression matches the beginning of the layer's name. Raises ModelError if that takes
    longer than MATCH_S: some expressions would take years."""
    try:
        return regex.match(expression, layer, timeout=MATCH_S) is not None
    except TimeoutError:
        raise ModelError(
            f"the quantization's regular expression {expression!r} takes longer than {MATCH_S:g} s for {layer}"
        ) from None
