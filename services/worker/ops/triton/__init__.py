"""Triton kernels for NVIDIA GPUs.

This package is imported separately from `ops`, because Triton is not installed everywhere and a CPU worker does not
need it.
"""

from services.worker.ops.triton.block_copy import PagePlace, copy_blocks, copy_pages
from services.worker.ops.triton.dependent_launch import launches_of
from services.worker.ops.triton.sampling import columns
from services.worker.ops.triton.sampling.pipeline import Pipeline, SampleRows, SlotState, Stages
from services.worker.ops.triton.slot_mapping import map_slots
from services.worker.ops.triton.token_ids import fill_last_tokens

__all__ = [
    "PagePlace",
    "Pipeline",
    "SampleRows",
    "SlotState",
    "Stages",
    "columns",
    "copy_blocks",
    "copy_pages",
    "fill_last_tokens",
    "launches_of",
    "map_slots",
]
