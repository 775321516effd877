"""Chooses the scheduler for a request: the scheduler that caches the start of the prompt, unless it is too busy.

Consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, 2018), with rendezvous hashing (Thaler and
Ravishankar, 1998) in place of a ring: every node (a scheduler) has a score for every key, and the node with the highest
score takes the key unless its load is over the bound. Placement keeps no state, so routers agree without communicating.
A node that joins or leaves moves only its own keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

# When this many schedulers have refused a request because they are overloaded, the router tries no other scheduler and
# returns the error to the client.
MAX_REFUSALS = 3
# Seconds between two load reports of a scheduler.
LOAD_INTERVAL_S = 0.1

_SLACK = 1.25
# Fraction of a node's capacity. A node whose load is below this fraction always has room, even if the other nodes are
# idle.
_IDLE_SHARE = 0.5

# Maximum number of prompt tokens that a completion's placement key covers. The key covers only whole blocks, as the
# prefix cache does, unless the prompt is shorter than a block.
_PROMPT_TOKENS = 512
_BLOCK_TOKENS = 16
# A chat's key covers the chat up to the end of the first user message, but at most this many characters (about 2,048
# tokens).
_CHAT_CHARS = 8192


@dataclass(frozen=True, slots=True)
class Node:
    """A scheduler and its load."""

    name: str
    outstanding_tokens: float
    capacity_tokens: float  # KV slots of its worker groups


def place(key: bytes, num_tokens: int, nodes: Sequence[Node]) -> Node:
    """Returns the node for a request of `num_tokens` tokens. Requests with the same placement key get the same node,
    unless its load is too high. `nodes` must not be empty."""
    if len(nodes) == 1:
        return nodes[0]
    mean = (sum(node.outstanding_tokens for node in nodes) + num_tokens) / len(nodes)
    free = [
        node
        for node in nodes
        if node.outstanding_tokens + num_tokens <= max(_SLACK * mean, _IDLE_SHARE * node.capacity_tokens)
    ]
    if not free:  # No node has room, because the request is large compared with the running work.
        return min(nodes, key=lambda node: node.outstanding_tokens)
    return max(free, key=lambda node: _score(key, node.name))


def prompt_key(model: str, cache_salt: str, token_ids: bytes) -> bytes:
    """Returns the placement key of a prompt. `token_ids`: 32-bit unsigned integers."""
    end = min(len(token_ids) // 4, _PROMPT_TOKENS)
    end -= end % _BLOCK_TOKENS if end > _BLOCK_TOKENS else 0
    return _digest((model.encode(), cache_salt.encode(), token_ids[: 4 * end]))


def chat_key(model: str, cache_salt: str, messages: Iterable[tuple[str, str]]) -> bytes:
    """Returns the placement key of a chat. `messages`: pairs of role and text. The key covers only the text before the
    first answer, so that later turns of the chat have the same key."""
    parts = [model.encode(), cache_salt.encode()]
    left = _CHAT_CHARS
    for role, text in messages:
        parts += [role.encode(), text[:left].encode(errors="replace")]
        left -= len(text)
        if role == "user" or left <= 0:
            break
    return _digest(parts)


def named_key(model: str, name: str) -> bytes:
    """Returns the placement key of all requests with the same OpenAI `prompt_cache_key`."""
    return _digest((model.encode(), name.encode()))


def _digest(parts: Iterable[bytes]) -> bytes:
    whole = blake2b(digest_size=16)
    for part in parts:
        whole.update(len(part).to_bytes(8, "little"))
        whole.update(part)
    return whole.digest()


def _score(key: bytes, name: str) -> bytes:
    return blake2b(name.encode(), key=key, digest_size=8).digest()
