"""A validated request whose prompts are token ids. A Generator runs it."""

from __future__ import annotations

from dataclasses import dataclass

from services.router.constraints import TokenConstraints
from services.router.model import ServedModel
from services.router.parameters import SamplingParams, StopConditions


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """The prompts, and how to continue them. The field `max_tokens` limits the outputs; `stop.max_tokens` only shows
    what the client set."""

    request_id: str
    model: ServedModel
    prompts: tuple[list[int], ...]
    # For each prompt, the maximum number of tokens to generate. With 0, one token is generated and dropped.
    max_tokens: tuple[int, ...]
    sampling: SamplingParams
    stop: StopConditions
    stop_strings: tuple[str, ...] = ()
    # None: every token is allowed.
    constraints: TokenConstraints | None = None
    # Whether the stop string, or the text of the stop token, that ends the output is kept in the returned text.
    includes_stop: bool = False
    n: int = 1
    skip_special_tokens: bool = True
    # Special tokens whose text is returned even with `skip_special_tokens`.
    visible_token_ids: frozenset[int] = frozenset()
    # Whether every delta has the usage so far.
    continuous_usage: bool = False
    # Seconds until the request times out; None: no limit.
    timeout: float | None = None
    traceparent: str = ""
    # Prompts share cached prefixes only if their salts are equal.
    cache_salt: str = ""
    # Lower values run first, if the schedulers use priorities.
    priority: int = 0
    # The tenant to whom the request's tokens count, if the schedulers share capacity fairly between tenants.
    tenant: str = ""
    # Key that routes requests with the same beginning to the same scheduler (shared/placement.py). Empty: the key is
    # computed from the prompt.
    affinity: bytes = b""
    # Id from `dispatch.new_turn_id`, if the client's request consists of several generations. None: it is this one.
    turn_id: int | None = None
