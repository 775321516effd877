"""The checked options of a generation request: everything but the prompt. All APIs use them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from services.router.constraints import (
    AroundStructure,
    ThinkingLimit,
    TokenConstraints,
    check_copies,
    resolve_constraints,
)
from services.router.generation.logprob_count import check_num_logprobs, num_of_prompts
from services.router.generation.request import GenerationRequest
from services.router.grammar import Structure
from services.router.model import ServedModel
from services.router.parameters import SamplingParams, StopConditions, Truncation, check_token_ids
from services.router.rpc import Caller
from shared.placement import named_key


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """Options for generating a request's output. `stop.max_tokens` is the client's value. It can be more than the
    context leaves for the output, because that limit can only be computed from the prompt's length.
    """

    sampling: SamplingParams
    stop: StopConditions
    stop_strings: tuple[str, ...] = ()
    structure: Structure | None = None
    # Makes the grammar of the whole output from the structure's grammar. None: the whole output is the structure.
    around_structure: AroundStructure | None = None
    # None: reasoning has no limit.
    thinking: ThinkingLimit | None = None
    # None: all tokens are allowed.
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    n: int = 1
    skip_special_tokens: bool = True
    # `includes_stop` and `continuous_usage` mean the same as in GenerationRequest.
    includes_stop: bool = False
    continuous_usage: bool = False
    truncation: Truncation | None = None
    cache_salt: str = ""
    priority: int = 0
    # The client's key for requests whose prompts begin alike; equal keys are routed to the same scheduler. Empty: the
    # key is computed from the prompt's beginning.
    prompt_cache_key: str = ""
    # Prefix of the names of these fields in error messages, such as `options.`.
    path: str = ""
    # Name of the request's field that asks for the prompt's log probabilities, for errors.
    prompt_logprobs_param: str = "prompt_logprobs"

    async def constraints(self, model: ServedModel, num_prompts: int) -> TokenConstraints | None:
        """Returns the checked constraints; None if every token is allowed. Raises ApiError if a token id is not in the
        model's vocabulary, if the structure cannot be used with the model, or if `num_prompts` copies of the
        constraints, one per prompt, are too large together."""
        check_token_ids(self.sampling, self.stop, model.info.vocab_size, self.path)
        constraints = await resolve_constraints(
            model, self.structure, self.effective_stop, self.allowed_token_ids, self.bad_words, self.path,
            self.around_structure, self.thinking,
        )  # fmt: skip
        if constraints is not None:
            check_copies(constraints, num_prompts, self.structure, self.path)
        return constraints

    @property
    def effective_stop(self) -> StopConditions:
        """The stop conditions. With a structure, `ignore_eos` is false, because only the end token can follow the
        structure."""
        return self.stop if self.structure is None else replace(self.stop, ignore_eos=False)

    async def request(
        self,
        model: ServedModel,
        caller: Caller,
        traceparent: str,
        prompts: tuple[list[int], ...],
        max_tokens: tuple[int, ...],
        affinity: bytes = b"",
        resolve: ResolveConstraints | None = None,
    ) -> GenerationRequest:
        """Makes the generation request. `max_tokens`: one limit per prompt. `affinity`: as in GenerationRequest;
        ignored if the client sets `prompt_cache_key`. `resolve`: function to call in place of the method `constraints`.
        Raises ApiError like `constraints`, and if the prompts' log probabilities are too many for one answer."""
        if resolve is None:
            constraints = await self.constraints(model, len(prompts))
        else:
            constraints = await resolve(self, model)
        request = GenerationRequest(
            request_id=caller.request_id,
            model=model,
            prompts=prompts,
            max_tokens=max_tokens,
            sampling=self.sampling,
            stop=self.effective_stop,
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
        check_num_logprobs(num_of_prompts(request), self.prompt_logprobs_param)
        return request


# Returns a request's token constraints; raises as GenerationOptions.constraints does.
ResolveConstraints = Callable[[GenerationOptions, ServedModel], Awaitable[TokenConstraints | None]]
