"""Which modules of transformers Quire computes as a whole, and how it computes products with one input together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.phi3.configuration_phi3 import Phi3Config
from transformers.models.phi3.modeling_phi3 import Phi3MLP

from services.worker.models.generic import trial
from services.worker.models.generic.modules import Joined
from services.worker.models.generic.recognize import GatedForm, NormForm, gated_form, norm_form
from services.worker.ops import Activation
from services.worker.ops.reference import ReferenceOps

_make_phi3_mlp: Any = Phi3MLP  # transformers does not type it


class NormTwice(LlamaRMSNorm):  # type: ignore[misc]
    """Norms the norm: other numbers only where eps counts."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(super().forward(hidden_states))  # type: ignore[no-any-return]


class ScaledNorm(LlamaRMSNorm):  # type: ignore[misc]
    def forward(self, hidden_states: Tensor) -> Tensor:
        return 1.001 * super().forward(hidden_states)  # type: ignore[no-any-return]


class GatedNorm(LlamaRMSNorm):  # type: ignore[misc]
    def forward(self, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
        return super().forward(hidden_states)  # type: ignore[no-any-return]


NORMS: dict[str, tuple[nn.Module, NormForm | None]] = {
    "RMSNorm": (LlamaRMSNorm(48, eps=1e-6), NormForm(True, 1e-6, 0.0)),
    "a weight that counts from 1": (GemmaRMSNorm(48, eps=1e-5), NormForm(True, 1e-5, 1.0)),
    "LayerNorm": (nn.LayerNorm(48, eps=1e-3), NormForm(False, 1e-3, 0.0)),
    "LayerNorm without bias": (nn.LayerNorm(48, bias=False), NormForm(False, 1e-5, 0.0)),
    "LayerNorm without weights": (nn.LayerNorm(48, elementwise_affine=False), None),
    "a norm of a norm": (NormTwice(48), None),
    "a factor": (ScaledNorm(48), None),
    "a second argument": (GatedNorm(48), None),
    "a norm over two dimensions": (nn.LayerNorm([4, 12]), None),
    "no norm": (nn.Linear(48, 48), None),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_norms_are_found_by_what_they_compute(name: str, device: str) -> None:
    module, form = NORMS[name]
    assert norm_form(module.to_empty(device=device) if device == "meta" else module) == form


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(8, 24, bias=False, device="meta"), nn.Linear(8, 24, bias=False, device="meta")
        self.w2 = nn.Linear(24, 8, bias=False, device="meta")

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.w2(self.w3(x) * functional.gelu(self.w1(x), approximate="tanh"))
        return output


class Clamped(MLP):
    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.w2(self.w3(x).clamp(max=2.0) * functional.silu(self.w1(x)))
        return output


class WithNorm(MLP):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8, device="meta")


class Fixed(MLP):
    """Fits no other sizes than its own."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.view(-1, 8))


GATED: dict[str, tuple[nn.Module, GatedForm | None]] = {
    "two matrices": (MLP(), GatedForm(("w1", "w3"), "w2", Activation.GELU_TANH)),
    "one matrix": (_make_phi3_mlp(Phi3Config()), GatedForm(("gate_up_proj",), "down_proj", Activation.SILU)),
    "clamped": (Clamped(), None),
    "a norm inside": (WithNorm(), None),
    "fixed sizes": (Fixed(), None),
    "a plain MLP": (nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.Linear(24, 8)), None),
}


@pytest.mark.parametrize("name", GATED)
def test_gated_mlps_are_found_by_what_they_compute(name: str) -> None:
    module, form = GATED[name]
    layers = dict(module.named_children())
    assert gated_form(module) == form
    assert dict(module.named_children()) == layers  # the trial leaves the module as it was


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o, self.twice = (nn.Linear(8, 8, device="meta") for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        y = self.q(x) + self.k(x)
        x.add_(1)
        output: Tensor = self.o(y) + self.v(x) + self.twice(x) + self.twice(y)
        return output


def test_products_are_joined_only_where_their_input_is_the_same() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = Attention()

        def forward(self, input_ids: Tensor, **_: object) -> None:
            self.attention(torch.zeros(2, 8, device="meta"))
            attend = ALL_ATTENTION_FUNCTIONS[trial.NAME]
            heads = torch.zeros(1, 2, trial.NUM_TOKENS, 8, device="meta")
            attend(self, heads, heads, heads, trial._Pattern())

    with torch.inference_mode():
        assert trial.run(Model(), "config.json").joined == (("attention.q.weight", "attention.k.weight"),)


def test_joined_products_are_computed_once_for_each_input() -> None:
    inputs: list[Tensor] = []

    def product(x: Tensor) -> Tensor:
        inputs.append(x)
        return torch.cat([x, 2 * x, 3 * x[:, :1]], dim=-1)

    joined = Joined(product, [2, 2, 1], ReferenceOps(torch.device("cpu"), torch.float32))
    for x in (torch.randn(1, 3, 2), torch.randn(4, 2)):
        for index in (1, 0, 2):
            factor = (1, 2, 3)[index]
            part = joined.take(index, x)
            assert part.is_contiguous()
            assert torch.equal(part, factor * (x[..., :1] if index == 2 else x))
    assert len(inputs) == 2
    x, y = torch.randn(4, 2), torch.randn(4, 2)
    joined.take(0, x)  # the others are never asked for
    assert torch.equal(joined.take(1, y), 2 * y)
    assert torch.equal(joined.take(1, y), 2 * y)
