"""Reads the values of config.json that many architectures have."""

from __future__ import annotations

from services.worker.errors import ModelError
from services.worker.fields import MAX_HEADS, Fields
from services.worker.ops import Activation

MAX_EXPERTS = 1 << 14
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


def read_head_count(config: Fields, key: str, hidden_size: int) -> int:
    """Returns the number of heads, of which each has an equal part of the hidden size. Raises ModelError if they have
    not."""
    num_heads = config.count(key, MAX_HEADS)
    if hidden_size % num_heads:
        raise config.wrong(key, f"a divisor of the hidden size, {hidden_size}")
    return num_heads


def require(config: Fields, key: str, *, value: bool) -> None:
    """Raises ModelError if the flag `key` is set to something other than `value`, which is also its default."""
    if config.flag(key, value) != value:
        raise ModelError(f"{config.where} sets {key} to {str(not value).lower()}, which is not supported")
