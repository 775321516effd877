"""Device operations that models are built from: one interface, one implementation per kind of device."""

from services.worker.ops.create import create_ops, fallback_reason
from services.worker.ops.gpu import find_gpu, select_gpu
from services.worker.ops.interface import (
    AttentionBatch,
    AttentionShape,
    AttentionWork,
    KVPages,
    Layer,
    Linear,
    Ops,
    WholeSequences,
)
from services.worker.ops.packed import PackedArrays
from services.worker.ops.transfers import Download, timing_event, upload, upload_into

__all__ = [
    "AttentionBatch",
    "AttentionShape",
    "AttentionWork",
    "Download",
    "KVPages",
    "Layer",
    "Linear",
    "Ops",
    "PackedArrays",
    "WholeSequences",
    "create_ops",
    "fallback_reason",
    "find_gpu",
    "select_gpu",
    "timing_event",
    "upload",
    "upload_into",
]
