"""What `Ops.full_attention` adds to the scores of one sequence, for devices that compute it with plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from services.worker.ops.interface import AttentionForm


def full_mask(form: AttentionForm, length: int, device: torch.device) -> Tensor | None:
    """Returns float32 [1 or num_heads, length, length], for each query and key: the bias of their distance, or -inf if
    the query does not see the key. None if every query sees every key and there is no bias."""
    window = length if form.sliding_window is None else form.sliding_window
    if form.distance_bias is None and window >= length and form.lookahead >= length - 1:
        return None
    at = torch.arange(length, device=device)
    distances = at[None, :] - at[:, None]
    hidden = (distances <= -window) | (distances > form.lookahead)
    if form.distance_bias is None:
        bias = torch.zeros(1, length, length, device=device)
    else:
        farthest = form.distance_bias.shape[1] // 2
        bias = form.distance_bias[:, distances.clamp(-farthest, farthest) + farthest]
    return bias.masked_fill(hidden, -torch.inf)
