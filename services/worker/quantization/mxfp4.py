"""Checkpoints of gpt-oss: experts in MXFP4 (OCP Microscaling Formats 1.0), all other matrices in floats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from services.worker.quantization.compressed_tensors import Targets
from services.worker.quantization.formats import StoredTensor, Tensors, count_groups, read_names
from services.worker.quantization.memory import Footprint, fp4
from services.worker.quantization.scheme import CheckpointQuantization

if TYPE_CHECKING:
    from torch import Tensor

    from services.worker.quantization.kinds.weight import Weight

_GROUP_SIZE = 32


@dataclass(frozen=True, slots=True)
class Mxfp4Format:
    """Groups of 32 inputs: 16 bytes in `blocks`, the even input in the low half of a byte, and an exponent in
    `scales`."""

    def stored(self, rows: int, columns: int) -> Tensors:
        groups = count_groups(columns, _GROUP_SIZE)
        return {
            "blocks": StoredTensor(((rows, groups, _GROUP_SIZE // 2),), ("U8",)),
            "scales": StoredTensor(((rows, groups),), ("U8",)),
        }

    def footprint(self, rows: int, columns: int) -> Footprint:
        return fp4(rows, columns, _GROUP_SIZE)

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int) -> Weight:
        from services.worker.quantization.kinds.fp4 import Fp4Weight

        return Fp4Weight(tensors["blocks"].flatten(1), tensors["scales"])

    def quantize(self, weight: Tensor) -> Weight:
        from services.worker.quantization.kinds.fp4 import Fp4Weight

        return Fp4Weight.quantize(weight)


def read_mxfp4(settings: Mapping[str, Any]) -> CheckpointQuantization:
    """Reads `settings`, a `quantization_config`. As in transformers, only experts are quantized, and
    `modules_to_not_convert` holds regular expressions. Raises ValueError for an invalid one."""
    excluded = tuple(rf"re:(?:.*\.)?(?:{name})(?:\.|$)" for name in read_names(settings, "modules_to_not_convert"))
    return CheckpointQuantization("mxfp4", ((Targets((r"re:.*\.experts\.",), excluded), Mxfp4Format()),))
