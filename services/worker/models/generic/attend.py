"""Quire's attention as transformers calls it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from services.worker.models.generic.trial import Call
from services.worker.models.step import Step
from services.worker.ops import AttentionForm, Ops

NAME = "quire"


@dataclass(slots=True)
class Attention:
    """The attention of one network. Its calls come in the order of the trial."""

    ops: Ops
    calls: tuple[Call, ...]
    pages: tuple[int, ...]  # `Step.pages` of each call
    forms: dict[int, AttentionForm] = field(default_factory=dict)  # by call
    step: Step | None = None
    next_call: int = 0

    def begin(self, step: Step) -> None:
        """The calls that follow are those of a forward pass."""
        self.step, self.next_call = step, 0
        _CURRENT[:] = [self]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> Tensor:
        """[1, heads, tokens, dim] each -> [1, tokens, heads, dim]"""
        index = self.next_call
        self.next_call += 1
        step = self.step
        assert step is not None
        pages = step.pages[self.pages[index]]
        q, k, v = (_rows(part) for part in (query, key, value))
        self.ops.write_kv(k, v, step.batch, pages)
        attended = self.ops.paged_attention(q, step.batch, pages, self._form(index, sinks))
        return attended.view(1, q.shape[0], q.shape[1], v.shape[2])

    def _form(self, index: int, sinks: Tensor | None) -> AttentionForm:
        if index not in self.forms:
            call = self.calls[index]
            self.forms[index] = AttentionForm(
                call.scale, call.sliding_window, call.chunk, call.soft_cap,
                sinks=None if sinks is None else sinks.detach().float().contiguous(),
            )  # fmt: skip
        return self.forms[index]


def _rows(heads: Tensor) -> Tensor:
    """[1, heads, tokens, dim] -> [tokens, heads, dim], with a contiguous last dimension"""
    rows = heads[0].transpose(0, 1)
    return rows if rows.stride(2) == 1 else rows.contiguous()


# The network that runs now. The interface of transformers is global, and a worker runs one step at a time.
_CURRENT: list[Attention] = []


def _attend(
    _: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    s_aux: Tensor | None = None,
    **__: Any,
) -> tuple[Tensor, None]:
    """See transformers' AttentionInterface. The trial has seen all other arguments."""
    return _CURRENT[0].attend(query, key, value, s_aux), None


# There is no function for masks of this name, so transformers makes none.
ALL_ATTENTION_FUNCTIONS.register(NAME, _attend)
