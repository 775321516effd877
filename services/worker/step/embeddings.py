"""Copies given embeddings to the device."""

from __future__ import annotations

from services.worker.models import InputEmbeddings
from services.worker.ops import Ops
from services.worker.plan import I64, GivenEmbeddings
from services.worker.transfers import upload


def upload_embeddings(given: GivenEmbeddings, at: I64, ops: Ops) -> InputEmbeddings:
    """`at` [n]: the tokens' indices in the order of the forward pass. Does not wait for the copy."""
    return InputEmbeddings(upload(at, ops.device), upload(given.rows, ops.device).to(ops.dtype))
