"""Quantized weights in checkpoints, and quantization at load with `--quantization`.

`config.py` and the format modules turn every layout into one of four kinds of weight, so that operations need to
support only these four. The kinds are in `kinds/`, which is imported separately, because `kinds/` needs torch and this
package must load without torch.
"""

from services.worker.quantization.at_load import ALIASES, CHOICES, AtLoad, resolve_quantization
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
    stored_bytes,
)
from services.worker.quantization.kv_scheme import is_kv_scale
from services.worker.quantization.pack_quantized import PackedInt4Format
from services.worker.quantization.scheme import DENSE, CheckpointQuantization

__all__ = [
    "ALIASES",
    "CHOICES",
    "DENSE",
    "FLOATS",
    "ITEM_BYTES",
    "AtLoad",
    "CheckpointQuantization",
    "EitherWayFormat",
    "Int8Format",
    "MatrixFormat",
    "PackedInt4Format",
    "StoredTensor",
    "Targets",
    "TransposedFormat",
    "is_kv_scale",
    "read_quantization",
    "resolve_quantization",
    "stored_bytes",
]
