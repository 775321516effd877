"""Finds out how a model of transformers attends: runs it on two tokens without data, and notes each call of the
attention.

The configuration alone is not enough. Some models have a layer's window in their configuration, some pass it as an
argument of the call, and some have it only in the mask. transformers' eager attention follows the mask, so the trial
reads windows and chunks from the mask.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from services.worker.errors import ModelError
from services.worker.ops import Heads

NAME = "quire_trial"
NUM_TOKENS = 2
_MAX_ERROR_CHARS = 300
# Arguments of a call that change nothing here: what they say is in the mask, or in the types of the tensors.
_SILENT = {"sliding_window", "dropout", "is_causal", "position_ids", "cache_position", "use_cache", "output_attentions"}


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the attention in a forward pass."""

    heads: Heads
    scale: float
    sliding_window: int | None
    chunk: int | None
    soft_cap: float | None


@dataclass(frozen=True, slots=True)
class _Pattern:
    """Stands for a mask. Models pass it on from where they make their masks to where they attend."""

    sliding_window: int | None = None
    chunk: int | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """What a model does in a forward pass."""

    calls: tuple[Call, ...]  # of the attention, in order
    matrices: frozenset[str]  # names of parameters that linear products take
    joined: tuple[tuple[str, ...], ...]  # those of products with the same input, in the order of the products
    num_chosen: Mapping[str, int] = field(default_factory=dict)  # experts that a token takes, by the module's name


def run(model: nn.Module, where: str) -> Trial:
    """Runs the model once. `model`: on the device `meta`, with the attention `NAME`. Raises ModelError if it does not
    attend through the interface, or in a way that Quire's attention cannot compute."""
    calls: list[Call] = []
    _TRIALS.append((calls, where))
    tokens = torch.zeros((1, NUM_TOKENS), dtype=torch.int64, device="meta")
    products = _Products()
    try:
        with torch.inference_mode(False), torch.no_grad(), products:
            model(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{where}: the model cannot run on paged attention: {describe(error)}") from error
    finally:
        _TRIALS.pop()
    if not calls:
        raise goes_around_interface(where)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    weights = [(given, names[weight]) for given, weight in products.taken if weight in names]
    return Trial(tuple(calls), frozenset(name for _, name in weights), tuple(_with_one_input(weights)))


def goes_around_interface(where: str) -> ModelError:
    return ModelError(f"{where}: the model does not attend through transformers' attention interface")


def describe(error: Exception) -> str:
    """Returns the type and the text of an error of transformers or torch in one line, shortened if it is long."""
    return textwrap.shorten(f"{type(error).__name__}: {error}", _MAX_ERROR_CHARS, placeholder=" …")


def _with_one_input(weights: Sequence[tuple[_Input, str]]) -> Iterator[tuple[str, ...]]:
    """Yields groups of weights. `weights`: the input and the weight's name of each product, in order."""
    times = Counter(name for _, name in weights)
    groups: dict[_Input, list[str]] = {}
    for given, name in weights:
        if times[name] == 1:  # a weight that a model takes twice has two inputs
            groups.setdefault(given, []).append(name)
    yield from (tuple(names) for names in groups.values() if len(names) > 1)


# Functions that return a weight in another type. See `network.py`.
CASTS = (Tensor.to, Tensor.type, Tensor.float)


class _Input(NamedTuple):
    """A tensor, as long as nobody writes to it."""

    id: int  # in Python
    version: int  # of torch


class _Products(TorchFunctionMode):
    """Notes the inputs and the weights of linear products."""

    def __init__(self) -> None:
        self.taken: list[tuple[_Input, int]] = []  # the input, and the Python id of the weight
        self._inputs: list[Tensor] = []  # kept, so that no other tensor gets their ids
        self._casts: list[tuple[Tensor, Tensor]] = []  # a result and its original

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        if function in CASTS:
            self._casts.append((result, args[0]))
        if function is functional.linear:
            weight = args[1] if len(args) > 1 else (kwargs or {})["weight"]
            weight = next((original for cast, original in self._casts if cast is weight), weight)
            given: Tensor = args[0] if args else (kwargs or {})["input"]
            self._inputs.append(given)
            self.taken.append((_Input(id(given), given._version), id(weight)))
        return result


# The calls and the file of each trial that runs now. transformers calls `_attend` and `_make_mask` by their registered
# names, so neither can get them as an argument.
_TRIALS: list[tuple[list[Call], str]] = []


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: object,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """See transformers' AttentionInterface. Shapes: [1, heads, tokens, dim]."""
    calls, where = _TRIALS[-1]
    who = f"{where}: {type(module).__name__}"
    strange = [
        name for name, given in others.items() if given is not None and given is not False and name not in _SILENT
    ]
    if strange:
        raise ModelError(f"{who} attends with {strange[0]}, which is not supported")
    if not isinstance(attention_mask, _Pattern):
        raise ModelError(f"{who} attends with a mask of its own, which is not supported")
    if others.get("is_causal") is False or not getattr(module, "is_causal", True):
        raise ModelError(f"{who} also attends to later tokens, which is not supported")
    if query.shape[2] != NUM_TOKENS or key.shape[2] != NUM_TOKENS:
        raise ModelError(f"{who} attends to other tokens than those of the sequence, which is not supported")
    heads = Heads(query.shape[1], key.shape[1], query.shape[3], value.shape[3])
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    if not isinstance(scale, float | int):
        raise ModelError(f"{who} computes the scale of its scores, which is not supported")
    calls.append(Call(heads, float(scale), attention_mask.sliding_window, attention_mask.chunk, softcap or None))
    return query.new_empty((1, NUM_TOKENS, heads.num_heads, heads.value_dim)), None


def _make_mask(
    mask_function: Callable[[int, int, Any, Any], Any],
    local_size: int | None = None,
    use_vmap: bool = False,
    **_: object,
) -> _Pattern:
    """See transformers' AttentionMaskInterface."""
    where = _TRIALS[-1][1]
    for pattern in (_Pattern(), _Pattern(sliding_window=local_size), _Pattern(chunk=local_size)):
        if not use_vmap and _agrees(mask_function, pattern, local_size or 1):
            return pattern
    raise ModelError(f"{where}: the model has a mask of its own, which is not supported")


def _agrees(mask_function: Callable[[int, int, Any, Any], Any], pattern: _Pattern, size: int) -> bool:
    """Whether the mask lets queries see the keys that `pattern` does, around the edges of windows and chunks."""
    at = torch.tensor(sorted({p for edge in (0, size, 2 * size, 3 * size) for p in range(max(0, edge - 2), edge + 3)}))
    query, key = at[:, None], at[None, :]
    expected = key <= query
    if pattern.sliding_window is not None:
        expected &= query - key < pattern.sliding_window
    if pattern.chunk is not None:
        expected &= query // pattern.chunk == key // pattern.chunk
    try:
        return bool((mask_function(0, 0, query, key) == expected).all())
    except RuntimeError:  # Chunks are counted from the end of the padding, which is a tensor without data here.
        return pattern.chunk is not None


ALL_ATTENTION_FUNCTIONS.register(NAME, _attend)
ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, _make_mask)
