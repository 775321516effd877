"""A decoder of transformers as a `Network`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from services.worker.models.build import Build
from services.worker.models.generic.attend import Attention
from services.worker.models.generic.config import GenericConfig
from services.worker.models.generic.skeleton import Skeleton
from services.worker.models.generic.weights import take_weights
from services.worker.models.step import Step
from services.worker.ops import Ops


class Generic:
    """See `Network`. The modules are transformers'. Quire's own operations compute their products and look-ups."""

    def __init__(self, config: GenericConfig, build: Build) -> None:
        skeleton = Skeleton(config.values, config.where)
        skeleton.attend_on_pages()
        self._last = config.max_model_len - 1
        self._model, self._base = skeleton.model, skeleton.base
        calls = config.trial.calls
        self._attention = Attention(build.ops, calls, tuple(build.attention(call.heads) for call in calls))
        if build.ops is not None:
            # Before the weights, because transformers also initializes those of a module that has buffers.
            _compute_buffers(skeleton, build.ops)
            skeleton.choose_frequencies(build.max_positions)
        take_weights(skeleton, config.trial, build)
        self._given = _Given()
        for name, module in list(self._model.named_modules()):
            if module is self._base:
                self._model.set_submodule(name, self._given)

    def hidden_states(self, step: Step) -> Tensor:
        """See `Network`."""
        self._attention.begin(step)
        positions = step.batch.positions.clamp(0, self._last).long()  # those of padding tokens can be anything
        outputs = self._base(**self._inputs(step), position_ids=positions[None], use_cache=False)
        hidden: Tensor = outputs[0][0]
        return hidden[step.wanted]

    def _inputs(self, step: Step) -> dict[str, Tensor]:
        """Returns the tokens as transformers' models take them: as ids, or all as embeddings."""
        if step.embeddings is None:
            return {"input_ids": step.token_ids[None]}
        embeddings: Tensor = self._base.get_input_embeddings()(step.token_ids)
        return {"inputs_embeds": step.embeddings.put_into(embeddings)[None]}

    def logits(self, hidden_states: Tensor) -> Tensor:
        """See `Network`. The model's own forward pass, with `hidden_states` as what its decoder returns: so it scales
        and caps logits as the model does."""
        self._given.hidden_states = hidden_states[None]
        logits: Tensor = self._model(input_ids=None, use_cache=False).logits[0]
        return logits


class _Given(nn.Module):
    """Stands for the decoder, which has run already."""

    hidden_states: Tensor

    def forward(self, *_: object, **__: object) -> _Outputs:
        return _Outputs(self.hidden_states)


class _Outputs(tuple[Tensor]):
    """What transformers' decoders return, with nothing but hidden states."""

    def __new__(cls, hidden_states: Tensor) -> _Outputs:
        return super().__new__(cls, (hidden_states,))

    @property
    def last_hidden_state(self) -> Tensor:
        return self[0]

    def __getattr__(self, name: str) -> None:
        return None


def _compute_buffers(skeleton: Skeleton, ops: Ops) -> None:
    """Computes what the model keeps beside its weights, such as the frequencies of a rotation."""
    model: Any = skeleton.model
    stored = set(model.state_dict())
    for prefix, module in model.named_modules():
        missing = [name for name in module._buffers if f"{prefix}.{name}" not in stored]
        for name in missing:
            buffer = module._buffers[name]
            if buffer is not None:
                module._buffers[name] = torch.empty_like(buffer, device=ops.device)
        if missing:
            model._init_weights(module)
