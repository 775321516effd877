"""Device operations that models are built from: one interface, one implementation per kind of device."""

from services.worker.ops.interface import (
    Activate,
    Activation,
    AttentionBatch,
    AttentionForm,
    AttentionShape,
    AttentionWork,
    Experts,
    Heads,
    HeadwiseLinear,
    KVPages,
    Layer,
    Linear,
    Ops,
    Rotation,
    RunLayers,
    WholeSequences,
)
from services.worker.ops.layer_parts import attend, norms_after

__all__ = [
    "Activate",
    "Activation",
    "AttentionBatch",
    "AttentionForm",
    "AttentionShape",
    "AttentionWork",
    "Experts",
    "Heads",
    "HeadwiseLinear",
    "KVPages",
    "Layer",
    "Linear",
    "Ops",
    "Rotation",
    "RunLayers",
    "WholeSequences",
    "attend",
    "norms_after",
]
