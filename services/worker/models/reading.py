"""Reads the values of config.json that many architectures have."""

from __future__ import annotations

from services.worker.errors import ModelError
from services.worker.fields import MAX_HEAD_DIM, MAX_HEADS, MAX_POSITIONS, Fields
from services.worker.ops import Activation, Heads

MAX_EXPERTS = 1 << 12
MAX_FACTOR = 1e6  # of scores, logits, ...
# transformers' names of activations.
_ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_python": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_fast": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "gelu_accurate": Activation.GELU_TANH,
    "quick_gelu": Activation.QUICK_GELU,
    "relu": Activation.RELU,
    "relu2": Activation.RELU_SQUARED,
}


def check_positions(config: Fields, num_positions: int) -> None:
    """`num_positions`: tokens in the longest sequence, with RoPE scaling. Raises ModelError if no model has as many."""
    if not 1 <= num_positions <= MAX_POSITIONS:
        raise ModelError(
            f"{config.where}: RoPE scaling gives {num_positions:,} positions; expected 1 to {MAX_POSITIONS:,}"
        )


def read_activation(config: Fields, key: str, default: str) -> Activation:
    """Raises ModelError for an activation that is not supported."""
    name = config.text(key, default)
    if name not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise ModelError(f"{config.where}: {key} is {name}, which is not supported; supported are {known}")
    return _ACTIVATIONS[name]


def require_number(config: Fields, key: str, value: float) -> None:
    """Raises ModelError if the number `key` is set to something other than `value`, which is also its default."""
    if config.number(key, value, above=float("-inf"), high=float("inf")) != value:
        raise config.wrong(key, f"{value:g}, the only value that is supported")


def read_head_count(config: Fields, key: str, hidden_size: int, default: int | None = None) -> int:
    """Returns the number of heads. Raises ModelError if the hidden size cannot be divided among them equally."""
    num_heads = config.count(key, MAX_HEADS, default)
    if hidden_size % num_heads:
        raise config.wrong(key, f"a divisor of the hidden size, {hidden_size}")
    return num_heads


def read_equal_head_dim(config: Fields, hidden_size: int, num_heads: int) -> int:
    """Returns the size of a head, an equal part of the hidden size. Raises ModelError if config.json says otherwise."""
    dim = hidden_size // num_heads
    if config.count("head_dim", hidden_size, dim) != dim:
        raise config.wrong("head_dim", f"{dim}, as hidden_size and num_attention_heads say")
    return dim


def spelling(config: Fields, *keys: str) -> str:
    """Returns the first of `keys` that has a value; the last one if none has."""
    return next((key for key in keys if config.values.get(key) is not None), keys[-1])


def read_heads(
    config: Fields,
    hidden_size: int,
    *,
    num_heads: int | None = None,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
) -> Heads:
    """Reads the numbers of heads and their size. The keyword arguments are the architecture's defaults. None means:
    config.json must have the number of heads; as many KV heads as heads; an equal part of the hidden size for each
    head. Raises ModelError if the heads cannot share the KV heads equally."""
    num_heads = config.count("num_attention_heads", MAX_HEADS, num_heads)
    num_kv_heads = config.count("num_key_value_heads", MAX_HEADS, num_kv_heads or num_heads)
    if num_heads % num_kv_heads:
        raise config.wrong("num_key_value_heads", f"a divisor of num_attention_heads, {num_heads}")
    head_dim = config.count("head_dim", MAX_HEAD_DIM, head_dim or max(1, hidden_size // num_heads))
    return Heads(num_heads, num_kv_heads, head_dim, head_dim)


def read_layer_types(config: Fields, key: str, num_layers: int, *types: str) -> list[str] | None:
    """Returns the type of each layer from the list `key`; None if config.json has no such list. Raises ModelError
    unless each type is one of `types`."""
    given = config.items(key, num_layers)
    if given is not None and any(kind not in types for kind in given):
        raise config.wrong(key, f"{' or '.join(types)} for each layer")
    return given


def read_layer_set(config: Fields, key: str) -> frozenset[int] | None:
    """Returns the layers that the list `key` names by index; None if config.json has no such list."""
    given = config.values.get(key)
    if given is None:
        return None
    if not isinstance(given, list) or not all(type(layer) is int for layer in given):
        raise config.wrong(key, "a list of layers")
    return frozenset(given)


def read_windows(config: Fields, num_layers: int, *, default: int, interval: int) -> tuple[int | None, ...]:
    """Returns each layer's sliding window in tokens; None for a layer that sees all tokens before it. `layer_types`
    names the layers with a window. If it is missing, all layers but every `interval`-th have one. `default`: the window
    if config.json does not name one. Null means that there are no windows."""
    types = read_layer_types(config, "layer_types", num_layers, "sliding_attention", "full_attention")
    if types is None:
        types = ["sliding_attention" if (index + 1) % interval else "full_attention" for index in range(num_layers)]
    is_null = config.values.get("sliding_window", default) is None
    window = None if is_null else config.count("sliding_window", MAX_POSITIONS, default)
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def require(config: Fields, key: str, *, value: bool) -> None:
    """Raises ModelError if the flag `key` is set to something other than `value`, which is also its default."""
    if config.flag(key, value) != value:
        raise ModelError(f"{config.where} sets {key} to {str(not value).lower()}, which is not supported")


def read_choice(config: Fields, key: str, *values: str) -> str:
    """Returns the string `key`. Raises ModelError if it is none of `values`, of which the first is its default."""
    value = config.text(key, values[0])
    if value not in values:
        raise config.wrong(key, " or ".join(values))
    return value


def refuse(config: Fields, *keys: str) -> None:
    """Raises ModelError if one of `keys` has a value."""
    for key in keys:
        if config.values.get(key) is not None:
            raise ModelError(f"{config.where} sets {key}, which is not supported")
