"""The order in which the columns of a weight stand for inputs, if it is not that of the inputs.

GPTQ's act-order assigns inputs to groups by importance. The columns are then sorted by group, so that each group is
contiguous: column k belongs to input input_order[k].
"""

from __future__ import annotations

import torch
from torch import Tensor


def in_order_of_inputs(weight: Tensor, input_order: Tensor | None) -> Tensor:
    """Returns the columns of `weight` [out_features, in_features] in the order of the inputs. input_order: int32
    [in_features]; None: they are in this order."""
    if input_order is None:
        return weight
    ordered = torch.empty_like(weight)
    ordered[:, input_order.long()] = weight
    return ordered


def is_same_order(first: Tensor | None, second: Tensor | None) -> bool:
    if first is None or second is None:
        return first is second
    return torch.equal(first, second)
