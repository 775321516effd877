"""A decoder of transformers as a `Network`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import activations
from transformers.pytorch_utils import Conv1D

from services.worker.errors import ModelError
from services.worker.models.build import Build, Matrix
from services.worker.models.generic.attend import Attention
from services.worker.models.generic.config import GenericConfig
from services.worker.models.generic.experts import take_experts
from services.worker.models.generic.skeleton import Skeleton, is_experts
from services.worker.models.generic.trial import CASTS
from services.worker.models.step import Step
from services.worker.ops import Activation, Linear, Ops


class Generic:
    """See `Network`. The modules are transformers'. Quire's own operations compute their products and look-ups."""

    def __init__(self, config: GenericConfig, build: Build) -> None:
        skeleton = Skeleton(config.values, "config.json")
        skeleton.attend_on_pages()
        self._last = config.max_model_len - 1
        self._model, self._base = skeleton.model, skeleton.base
        calls = config.trial.calls
        self._attention = Attention(build.ops, calls, tuple(build.attention(call.heads) for call in calls))
        _take_weights(skeleton, config.trial.matrices, build)
        if build.ops is not None:
            _compute_buffers(skeleton, build.ops)
            skeleton.choose_frequencies(build.max_positions)
        self._given = _Given()
        for name, module in list(self._model.named_modules()):
            if module is self._base:
                self._model.set_submodule(name, self._given)

    def hidden_states(self, step: Step) -> Tensor:
        """See `Network`."""
        self._attention.begin(step)
        positions = step.batch.positions.clamp(0, self._last).long()  # those of padding tokens can be anything
        outputs = self._base(input_ids=step.token_ids[None], position_ids=positions[None], use_cache=False)
        hidden: Tensor = outputs[0][0]
        return hidden[step.wanted]

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


def _take_weights(skeleton: Skeleton, matrices: Collection[str], build: Build) -> None:
    """Takes every weight that the checkpoint stores. Matrices of linear layers and embeddings stay with Quire's
    operations; the modules keep parameters without data in their place. `matrices`: names of parameters that linear
    products take, also outside of linear layers."""
    names, wide = skeleton.stored_names(), skeleton.wide_names()
    shapes = {name: tuple(tensor.shape) for name, tensor in skeleton.model.state_dict().items()}
    seen: dict[int, Linear] = {}  # products by the parameter, which embedding and output layer can share

    def linear(prefix: str, module: nn.Module) -> Linear:
        weight = module.weight
        assert isinstance(weight, Tensor)
        bias = getattr(module, "bias", None)
        if id(weight) not in seen:
            is_transposed = isinstance(module, Conv1D)
            outputs, inputs = reversed(weight.shape) if is_transposed else weight.shape
            name = names[f"{prefix}.weight"].removesuffix(".weight")
            seen[id(weight)] = build.linear(Matrix(name, outputs, inputs, bias is not None, is_transposed))
        elif bias is not None:  # an output layer that is tied to the embeddings
            return _with_bias(seen[id(weight)], build.tensor(names[f"{prefix}.bias"], tuple(bias.shape)))
        return seen[id(weight)]

    taken: set[str] = set()
    of_experts: list[str] = []
    for prefix, module in skeleton.model.named_modules():
        kind = type(module)
        if any(prefix.startswith(f"{inside}.") for inside in of_experts):
            continue  # the activation function of experts
        if is_experts(module):
            of_experts.append(prefix)
            take_experts(skeleton, prefix, module, build)
            taken |= {f"{prefix}.{name}" for name, _ in module.named_parameters()}
        elif kind.forward is nn.Linear.forward or isinstance(module, Conv1D):
            _become(module, _Linear, product=linear(prefix, module), ops=build.ops)
        elif isinstance(module, nn.Embedding):
            _become(module, _Embedding, product=linear(prefix, module), ops=build.ops)
        else:
            continue
        taken |= {f"{prefix}.weight", f"{prefix}.bias"}
    for prefix, module in list(skeleton.model.named_modules()):
        if type(module) in _ACTIVATIONS:
            skeleton.model.set_submodule(prefix, _Activation(build.ops, _ACTIVATIONS[type(module)]))
    for name, shape in shapes.items():
        if name in taken:
            pass
        elif name not in names:
            raise ModelError(f"{skeleton.where}: checkpoints store {name} together with others, which is not supported")
        elif name in matrices and len(shape) == 2 and names[name].endswith(".weight"):
            product = build.linear(Matrix(names[name].removesuffix(".weight"), *shape))
            _set(skeleton.model, name, None if build.ops is None else _Product.of(product, shape, build.ops))
        elif name in wide and len(shape) == 1:
            _set(skeleton.model, name, build.wide_vector(names[name], *shape))
        else:
            _set(skeleton.model, name, build.tensor(names[name], shape))


def _with_bias(product: Linear, bias: Tensor) -> Linear:
    return lambda x: product(x) + bias


def _become(module: nn.Module, kind: type[nn.Module], **attributes: Any) -> None:
    """Makes `kind` the base class of the module's class, so that what the class itself computes stays."""
    own = type(module)
    module.__class__ = kind if own in (nn.Linear, nn.Embedding, Conv1D) else type(own.__name__, (own, kind), {})
    for name, value in attributes.items():
        setattr(module, name, value)


# torch computes the last elements of an array by another formula than the others, so that a token's activations would
# depend on its place in the batch.
_ACTIVATIONS: Mapping[type[nn.Module], Activation] = {
    activations.SiLUActivation: Activation.SILU,
    nn.SiLU: Activation.SILU,
    activations.GELUActivation: Activation.GELU,
    activations.GELUTanh: Activation.GELU_TANH,
    activations.NewGELUActivation: Activation.GELU_TANH,
    activations.FastGELUActivation: Activation.GELU_TANH,
    activations.AccurateGELUActivation: Activation.GELU_TANH,
    activations.QuickGELUActivation: Activation.QUICK_GELU,
}


class _Activation(nn.Module):
    def __init__(self, ops: Ops, kind: Activation) -> None:
        super().__init__()
        self._ops, self._kind = ops, kind

    def forward(self, x: Tensor) -> Tensor:
        return self._ops.activation(x.reshape(-1, x.shape[-1]).contiguous(), self._kind).view(x.shape)


class _Product(Tensor):
    """A weight without data. Linear products with it are Quire's, so that they are batch-invariant; routers of experts
    have such weights. A product in another type is computed in the operations' type."""

    product: Linear
    ops: Ops

    @classmethod
    def of(cls, product: Linear, shape: tuple[int, ...], ops: Ops) -> _Product:
        weight: _Product = torch.empty(shape, dtype=ops.dtype, device="meta").as_subclass(cls)
        weight.product, weight.ops = product, ops
        return weight

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function in CASTS:
            return args[0]
        if function is functional.linear:
            x, weight, bias = (*args, None)[:3]
            # Rows with a gap between them: torch then computes row by row what follows, such as a sigmoid. Its formula
            # for the last elements of an array would else make a token's scores depend on its place in the batch.
            scores = x.new_empty(x.shape[:-1].numel(), weight.shape[0] + 1)[:, :-1]
            scores.copy_(weight.product(x.reshape(-1, x.shape[-1]).to(weight.ops.dtype)))
            return (scores if bias is None else scores.add_(bias)).unflatten(0, x.shape[:-1])
        return super().__torch_function__(function, types, args, kwargs or {})  # type: ignore[no-untyped-call]


class _Linear(nn.Linear):
    product: Linear
    ops: Ops

    def forward(self, x: Tensor) -> Tensor:
        # The routers of some models compute in float32.
        product = self.product(x.reshape(-1, x.shape[-1]).to(self.ops.dtype))
        return product.to(x.dtype).view(*x.shape[:-1], -1)


class _Embedding(nn.Embedding):
    product: Linear
    ops: Ops

    def forward(self, token_ids: Tensor) -> Tensor:
        return self.ops.embedding(token_ids.flatten(), self.product).view(*token_ids.shape, -1)


def _set(model: nn.Module, name: str, value: Tensor | None) -> None:
    """Replaces a parameter or a buffer. None: leaves it without data."""
    if value is None:
        return
    owner, _, attribute = name.rpartition(".")
    module = model.get_submodule(owner)
    if attribute in module._buffers:
        module._buffers[attribute] = value
    else:
        del module._parameters[attribute]
        # No `nn.Parameter`, which would forget the class of the tensor.
        setattr(module, attribute, value)


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
