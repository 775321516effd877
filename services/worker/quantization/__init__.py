"""Quantized weights in checkpoints, and quantization at load with `--quantization`.

`config.py` and the format modules turn every layout into one of a few kinds of weight, so that operations need to
support only these. The kinds are in `kinds/`, which is imported separately, because `kinds/` needs torch and this
package must load without torch.
"""

from services.worker.quantization.at_load import ALIASES, CHOICES, REFUSALS, AtLoad, resolve_quantization
from services.worker.quantization.compressed_tensors import Targets
from services.worker.quantization.config import read_quantization
from services.worker.quantization.formats import (
    FLOATS,
    ITEM_BYTES,
    EitherWayFormat,
    Int8Format,
    MatrixFormat,
    StoredTensor,
    TransposedFormat,
)
from services.worker.quantization.kv_scheme import is_kv_scale
from services.worker.quantization.memory import ALL_KINDS, COMPUTED, Computed, Kind
from services.worker.quantization.pack_quantized import PackedFormat
from services.worker.quantization.scheme import DENSE, CheckpointQuantization, is_output_layer

__all__ = [
    "ALIASES",
    "ALL_KINDS",
    "CHOICES",
    "COMPUTED",
    "DENSE",
    "FLOATS",
    "ITEM_BYTES",
    "REFUSALS",
    "AtLoad",
    "CheckpointQuantization",
    "Computed",
    "EitherWayFormat",
    "Int8Format",
    "Kind",
    "MatrixFormat",
    "PackedFormat",
    "StoredTensor",
    "Targets",
    "TransposedFormat",
    "is_kv_scale",
    "is_output_layer",
    "read_quantization",
    "resolve_quantization",
]
