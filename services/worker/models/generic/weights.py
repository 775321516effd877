"""The weights of a model of transformers, taken by Quire's operations."""

from __future__ import annotations

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from services.worker.errors import ModelError
from services.worker.models.build import Build, Matrix
from services.worker.models.generic.experts import take_experts
from services.worker.models.generic.modules import (
    ACTIVATIONS,
    ActivationModule,
    EmbeddingModule,
    Joined,
    JoinedModule,
    LinearModule,
    Product,
    become,
    compute_with,
)
from services.worker.models.generic.recognize import NormForm, gated_form, norm_form
from services.worker.models.generic.skeleton import Skeleton, is_experts
from services.worker.models.generic.trial import Trial
from services.worker.models.layers.mlp import GatedMLP
from services.worker.models.layers.norms import LayerNorm, RMSNorm
from services.worker.ops import Linear


def take_weights(skeleton: Skeleton, trial: Trial, build: Build) -> None:
    """Takes every weight that the checkpoint stores. Matrices of linear layers and embeddings stay with Quire's
    operations; the modules keep parameters without data in their place."""
    take = _Take(skeleton, trial, build)
    take.layers()
    for group in trial.joined:
        take.joined(group)
    take.matrices()
    take.activations()
    take.others()


class _Take:
    def __init__(self, skeleton: Skeleton, trial: Trial, build: Build) -> None:
        self._skeleton, self._model, self._trial, self._build = skeleton, skeleton.model, trial, build
        self._modules = dict(skeleton.model.named_modules())
        self._stored = skeleton.stored_names()
        self._shapes = {name: tuple(tensor.shape) for name, tensor in skeleton.model.state_dict().items()}
        self._taken: set[str] = set()  # names of parameters
        self._tensors: dict[str, Tensor] = {}  # by the stored name
        self._products: dict[int, Linear] = {}  # by the parameter, which embedding and output layer can share

    def layers(self) -> None:
        """Takes the modules that are, as a whole, layers of Quire's."""
        for prefix, module in self._modules.items():
            if is_experts(module):
                take_experts(self._skeleton, prefix, module, self._trial.num_chosen[prefix], self._build)
            elif norm := norm_form(module):
                compute_with(module, self._norm(prefix, norm), self._build.ops)
            elif gated := gated_form(module):
                gate_up = tuple(self._matrix(f"{prefix}.{name}") for name in gated.gate_up)
                down = self._matrix(f"{prefix}.{gated.down}")
                compute_with(module, GatedMLP(self._build, gate_up, down, gated.activation), self._build.ops)
            else:
                continue
            self._taken |= {f"{prefix}.{name}" for name, _ in module.named_parameters()}

    def joined(self, group: tuple[str, ...]) -> None:
        """Lets one product compute linear layers with the same input. `group`: the names of their weights."""
        prefixes = [name.removesuffix(".weight") for name in group if name not in self._taken]
        prefixes = [prefix for prefix in prefixes if _is_linear(self._modules.get(prefix))]
        if len(prefixes) < 2:
            return
        matrices = [self._matrix(prefix) for prefix in prefixes]
        joined = Joined(self._build.linear(*matrices), [matrix.outputs for matrix in matrices], self._build.ops)
        for index, prefix in enumerate(prefixes):
            become(self._modules[prefix], JoinedModule, joined=joined, index=index)
            self._taken |= {f"{prefix}.weight", f"{prefix}.bias"}

    def matrices(self) -> None:
        """Takes linear layers and embeddings."""
        for prefix, module in self._modules.items():
            if f"{prefix}.weight" in self._taken:
                continue
            if _is_linear(module):
                become(module, LinearModule, product=self._product(prefix), ops=self._build.ops)
            elif isinstance(module, nn.Embedding):
                become(module, EmbeddingModule, product=self._product(prefix), ops=self._build.ops)
            else:
                continue
            self._taken |= {f"{prefix}.weight", f"{prefix}.bias"}

    def activations(self) -> None:
        for prefix, module in self._modules.items():
            if type(module) in ACTIVATIONS:
                self._model.set_submodule(prefix, ActivationModule(self._build.ops, ACTIVATIONS[type(module)]))

    def others(self) -> None:
        """Takes what is left."""
        ops, wide = self._build.ops, self._skeleton.wide_names()
        for name, shape in self._shapes.items():
            if name in self._taken:
                continue
            stored = self._name(name)
            if name in self._trial.matrices and len(shape) == 2 and stored.endswith(".weight"):
                product = self._build.linear(Matrix(stored.removesuffix(".weight"), *shape))
                _set(self._model, name, None if ops is None else Product.of(product, shape, ops))
            elif name in wide and len(shape) == 1:
                _set(self._model, name, self._build.wide_vector(stored, *shape))
            else:
                _set(self._model, name, self._tensor(name, shape))

    def _name(self, name: str) -> str:
        """Returns the name with which a checkpoint stores the parameter."""
        if name not in self._stored:
            where = self._skeleton.where
            raise ModelError(f"{where}: checkpoints store {name} together with others, which is not supported")
        return self._stored[name]

    def _tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Returns a parameter that is no matrix. Several can share a stored tensor, which is read once."""
        stored = self._name(name)
        if stored not in self._tensors:
            self._tensors[stored] = self._build.tensor(stored, shape)
        return self._tensors[stored]

    def _norm(self, prefix: str, form: NormForm) -> RMSNorm | LayerNorm:
        name, (size,) = self._name(f"{prefix}.weight").removesuffix(".weight"), self._shapes[f"{prefix}.weight"]
        if form.is_rms:
            return RMSNorm(self._build, name, size, form.eps, form.plus)
        return LayerNorm(self._build, name, size, form.eps, form.plus, has_bias=f"{prefix}.bias" in self._shapes)

    def _matrix(self, prefix: str) -> Matrix:
        module = self._modules[prefix]
        is_transposed = isinstance(module, Conv1D)
        shape = self._shapes[f"{prefix}.weight"]
        outputs, inputs = reversed(shape) if is_transposed else shape
        name = self._name(f"{prefix}.weight").removesuffix(".weight")
        return Matrix(name, outputs, inputs, self._stored.get(f"{prefix}.bias") == f"{name}.bias", is_transposed)

    def _product(self, prefix: str) -> Linear:
        matrix, weight = self._matrix(prefix), self._modules[prefix].weight
        is_first = id(weight) not in self._products
        if is_first:
            self._products[id(weight)] = self._build.linear(matrix)
        product = self._products[id(weight)]
        if f"{prefix}.bias" not in self._shapes or (is_first and matrix.has_bias):
            return product
        # An output layer that is tied to the embeddings, or whose bias has a name of its own.
        return _with_bias(product, self._tensor(f"{prefix}.bias", (matrix.outputs,)))


def _is_linear(module: nn.Module | None) -> bool:
    return isinstance(module, Conv1D) or getattr(type(module), "forward", None) is nn.Linear.forward


def _with_bias(product: Linear, bias: Tensor) -> Linear:
    return lambda x: product(x) + bias


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
