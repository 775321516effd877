"""A request in token ids, checked: what a Generator takes."""

from __future__ import annotations

from dataclasses import dataclass

from services.router.constraints import TokenConstraints
from services.router.model import ServedModel
from services.router.parameters import SamplingParams, StopConditions


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What to generate, checked. `stop.max_tokens` is not read: `max_tokens` has it, prompt by prompt."""

    request_id: str
    model: ServedModel
    prompts: tuple[list[int], ...]
    # Beside the prompts: the most tokens to generate for each. With 0 one is generated, and nobody learns of it.
    max_tokens: tuple[int, ...]
    sampling: SamplingParams
    stop: StopConditions
    stop_strings: tuple[str, ...] = ()
    # None: any token may be drawn.
    constraints: TokenConstraints | None = None
    # Whether the text has what ended it: the stop string, or the stop token's own text.
    includes_stop: bool = False
    n: int = 1
    skip_special_tokens: bool = True
    # Special tokens that the text shows all the same.
    visible_token_ids: frozenset[int] = frozenset()
    # Whether every delta tells the usage so far.
    continuous_usage: bool = False
    # Seconds until the client gives up; None: no limit.
    timeout: float | None = None
    traceparent: str = ""
    # Prompts share what is cached of their beginnings only where this is equal.
    cache_salt: str = ""
    # Less is sooner, where the schedulers heed it.
    priority: int = 0
    # Whose request it is, where the schedulers are fair among tenants.
    tenant: str = ""
    # What brings requests together whose prompts begin alike (shared/placement.py); empty: made of the prompt.
    affinity: bytes = b""
