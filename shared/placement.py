"""Which scheduler a request goes to: the one that has the beginning of its prompt cached, unless it is too busy.

Consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, 2018), with rendezvous hashing (Thaler and
Ravishankar, 1998) in place of a ring: every node has a score for every key, and the highest one that is not over its
bound takes it. Nothing is remembered, so routers agree without a word; a node that comes or goes moves only the keys
that are, or were, its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

# A scheduler that refuses a request costs it a try; so many others are asked.
MAX_REFUSALS = 3
# Seconds between two words from a scheduler on how busy it is.
LOAD_INTERVAL_S = 0.1

_SLACK = 1.25
# Of what a node can hold: below that it is not busy, however little the others have to do.
_IDLE_SHARE = 0.5

# Of a completion's prompt, in tokens; in whole blocks, since nothing less is cached.
_PROMPT_TOKENS = 512
_BLOCK_TOKENS = 16
# Of a chat up to the end of its first user turn: about 2,048 tokens.
_CHAT_CHARS = 8192


@dataclass(frozen=True, slots=True)
class Node:
    """A scheduler, as far as placement goes."""

    name: str
    outstanding_tokens: float
    capacity_tokens: float  # KV slots of its worker groups


def place(key: bytes, num_tokens: int, nodes: Sequence[Node]) -> Node:
    """Where work of `num_tokens` goes; `nodes` must not be empty."""
    if len(nodes) == 1:
        return nodes[0]
    mean = (sum(node.outstanding_tokens for node in nodes) + num_tokens) / len(nodes)
    free = [
        node
        for node in nodes
        if node.outstanding_tokens + num_tokens <= max(_SLACK * mean, _IDLE_SHARE * node.capacity_tokens)
    ]
    if not free:  # a single request that outweighs everything under way
        return min(nodes, key=lambda node: node.outstanding_tokens)
    return max(free, key=lambda node: _score(key, node.name))


def prompt_key(model: str, cache_salt: str, token_ids: bytes) -> bytes:
    """The key of a prompt given as token ids (u32)."""
    end = min(len(token_ids) // 4, _PROMPT_TOKENS)
    end -= end % _BLOCK_TOKENS if end > _BLOCK_TOKENS else 0
    return _digest((model.encode(), cache_salt.encode(), token_ids[: 4 * end]))


def chat_key(model: str, cache_salt: str, messages: Iterable[tuple[str, str]]) -> bytes:
    """The key of a chat, (role, text) by (role, text): what stands before the first answer, so that later turns have
    the same."""
    parts = [model.encode(), cache_salt.encode()]
    left = _CHAT_CHARS
    for role, text in messages:
        parts += [role.encode(), text[:left].encode(errors="replace")]
        left -= len(text)
        if role == "user" or left <= 0:
            break
    return _digest(parts)


def named_key(model: str, name: str) -> bytes:
    """The key of requests that their sender has named alike: OpenAI's prompt_cache_key."""
    return _digest((model.encode(), name.encode()))


def _digest(parts: Iterable[bytes]) -> bytes:
    whole = blake2b(digest_size=16)
    for part in parts:
        whole.update(len(part).to_bytes(8, "little"))
        whole.update(part)
    return whole.digest()


def _score(key: bytes, name: str) -> bytes:
    return blake2b(name.encode(), key=key, digest_size=8).digest()
