"""Decides from `--quantization` and the checkpoint's own quantization how weights are quantized at load."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.worker.errors import ModelError
from services.worker.quantization.alternatives import METHODS, alternative_to
from services.worker.quantization.formats import (
    ITEM_BYTES,
    Fp8Format,
    Int8Format,
    MatrixFormat,
    StoredTensor,
    Tensors,
)
from services.worker.quantization.memory import Footprint, Kind, int4
from services.worker.quantization.scheme import CheckpointQuantization, is_in_block, is_output_layer, is_router

if TYPE_CHECKING:
    from torch import Tensor

    from services.worker.quantization.kinds.weight import Weight

INT4_GROUP_SIZE = 128
_LEAST_GROUP_SIZE = 16  # for the kernels, and for precision
# Matrices that stay in floats beside the routers of experts: those that `Build.absorbed` takes apart into floats, the
# classifier of a decoder, and the small tables of positions and token types in transformers' code.
_IN_FLOATS = (
    "kv_b_proj", "score", "wpe", "embed_positions", "positions_embed", "position_embeddings", "token_type_embeddings",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Int4Groups:
    """4 bits in groups of 128 inputs, or of the largest power of two that divides the inputs. The tensors are those of
    `Int4Weight`; no checkpoint stores them."""

    def stored(self, rows: int, columns: int) -> Tensors:
        groups = columns // _group_size(columns)
        return {
            "packed": StoredTensor(((rows, columns // 2),), ("U8",)),
            "scales": StoredTensor(((rows, groups),), ("F32",)),
            "zero_points": StoredTensor(((rows, groups),), ("U8",)),
        }

    def footprint(self, rows: int, columns: int) -> Footprint:
        return int4(rows, columns, columns // _group_size(columns), ITEM_BYTES["F32"])

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int) -> Weight:
        from services.worker.quantization.kinds.int4 import Int4Weight

        return Int4Weight(tensors["packed"], tensors["scales"], tensors["zero_points"])

    def quantize(self, weight: Tensor) -> Weight:
        from services.worker.quantization.kinds.int4 import Int4Weight

        return Int4Weight.quantize(weight.float(), _group_size(weight.shape[1]))


def _group_size(columns: int) -> int:
    size = math.gcd(columns, INT4_GROUP_SIZE)
    if size < _LEAST_GROUP_SIZE:
        raise ModelError(
            f"--quantization int4 cannot divide a matrix of {columns} inputs into groups; use int8-weight-only"
        )
    return size


@dataclass(frozen=True, slots=True)
class AtLoad:
    """Quantization at load, of weights that the checkpoint holds in floats."""

    name: str  # value of --quantization
    kind: Kind
    form: MatrixFormat
    # Whether the output layer and embeddings tied to it are quantized, too. They are a large part of the
    # small models that run on CPUs.
    output_layer: bool

    def applies(self, layer: str, tied: bool) -> bool:
        """Returns whether to quantize a layer. `tied`: whether the embeddings are the output layer, too."""
        if is_router(layer) or layer.rpartition(".")[2] in _IN_FLOATS:
            return False
        return is_in_block(layer) or (self.output_layer and (is_output_layer(layer) or tied))


AT_LOAD = {
    scheme.name: scheme
    for scheme in (
        AtLoad("fp8", Kind.FP8, Fp8Format(), output_layer=False),
        AtLoad("int8", Kind.INT8, Int8Format(quantize_activations=True), output_layer=True),
        AtLoad("int8-weight-only", Kind.INT8, Int8Format(quantize_activations=False), output_layer=True),
        AtLoad("int4", Kind.INT4, Int4Groups(), output_layer=False),
    )
}
CHECKPOINT_METHODS = ("fp8", "awq", "gptq", "compressed-tensors", "modelopt", "mxfp4", "gguf")
# Names in vLLM and TGI that the option accepts, and what Quire calls the same weights.
ALIASES = {"awq_marlin": "awq", "gptq_marlin": "gptq", "eetq": "int8-weight-only"}
# Names of other methods, and what to do instead.
REFUSALS = {method: alternative_to(method) for method in METHODS}
CHOICES = tuple(dict.fromkeys((*AT_LOAD, *CHECKPOINT_METHODS)))


def resolve_quantization(option: str | None, checkpoint: CheckpointQuantization | None) -> AtLoad | None:
    """Returns how to quantize at load; None if weights stay as they are stored. Raises ModelError if the option
    contradicts the checkpoint."""
    if option is None or (checkpoint is not None and option == checkpoint.method):
        return None
    if checkpoint is not None:
        raise ModelError(f"--quantization is {option}, but the checkpoint is {checkpoint.method}; leave the option out")
    if option not in AT_LOAD:
        raise ModelError(
            f"--quantization is {option}, but the checkpoint is not quantized; "
            f"--quantization can quantize it at load with {', '.join(AT_LOAD)}"
        )
    return AT_LOAD[option]
