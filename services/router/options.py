"""What a request says of its generation besides the prompt, checked: the same for every API."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from services.router.calls import Caller
from services.router.constraints import ThinkingLimit, resolve_constraints
from services.router.generation import GenerationRequest
from services.router.model import ServedModel
from services.router.sampling import SamplingParams, StopConditions, check_token_ids
from services.router.structure import Structure
from services.router.truncation import Truncation
from shared.placement import named_key


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """`stop.max_tokens` is the client's; what the context leaves is worked out with the prompt."""

    sampling: SamplingParams
    stop: StopConditions
    stop_strings: tuple[str, ...] = ()
    structure: Structure | None = None
    # What makes of the structure's grammar the whole output's, both in the library's form; None: they are the same.
    around_structure: Callable[[str], str] | None = None
    # None: the model reasons as long as it likes.
    thinking: ThinkingLimit | None = None
    # None: all of them.
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    n: int = 1
    skip_special_tokens: bool = True
    # As in GenerationRequest.
    includes_stop: bool = False
    continuous_usage: bool = False
    truncation: Truncation | None = None
    cache_salt: str = ""
    priority: int = 0
    # What the sender calls requests whose prompts begin alike; empty: they are told by their beginnings.
    prompt_cache_key: str = ""
    # Before the names of these fields in errors.
    path: str = ""

    async def request(
        self,
        model: ServedModel,
        caller: Caller,
        traceparent: str,
        prompts: tuple[list[int], ...],
        max_tokens: tuple[int, ...],
        affinity: bytes = b"",
    ) -> GenerationRequest:
        """`max_tokens`: beside the prompts. `affinity`: as in GenerationRequest, where the sender names no key. Raises
        ApiError where the model has no such token, or cannot be held to the structure."""
        check_token_ids(self.sampling, self.stop, model.info.vocab_size, self.path)
        # Nothing can follow an output that is complete.
        stop = self.stop if self.structure is None else replace(self.stop, ignore_eos=False)
        constraints = await resolve_constraints(
            model, self.structure, stop, self.allowed_token_ids, self.bad_words, self.path, self.around_structure,
            self.thinking,
        )  # fmt: skip
        return GenerationRequest(
            request_id=caller.request_id,
            model=model,
            prompts=prompts,
            max_tokens=max_tokens,
            sampling=self.sampling,
            stop=stop,
            constraints=constraints,
            stop_strings=self.stop_strings,
            n=self.n,
            skip_special_tokens=self.skip_special_tokens,
            includes_stop=self.includes_stop,
            continuous_usage=self.continuous_usage,
            timeout=caller.timeout,
            traceparent=traceparent,
            cache_salt=self.cache_salt,
            priority=self.priority,
            tenant=caller.tenant,
            affinity=named_key(model.info.name, self.prompt_cache_key) if self.prompt_cache_key else affinity,
        )
