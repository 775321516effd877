"""Limits the number of log probabilities in an answer, before anything is computed."""

from __future__ import annotations

from dataclasses import replace

from services.router.errors import invalid
from services.router.generation.request import GenerationRequest
from services.router.parameters import SamplingParams

# Limit for one answer. Each token counts once for itself and once per candidate. This many take about 200 MB of JSON,
# and 25 MB of the router's memory while they wait for the client.
MAX_LOGPROBS_OF_ANSWER = 2**21


def check_num_logprobs(count: int, param: str) -> None:
    """Raises ApiError if there are too many. `param`: the field of the request that causes the number."""
    if count > MAX_LOGPROBS_OF_ANSWER:
        message = (
            f"Invalid '{param}': the answer could have {count} log probabilities (answers × tokens × log "
            f"probabilities per token); the maximum is {MAX_LOGPROBS_OF_ANSWER}. Ask for fewer tokens, answers "
            "or candidates, or send several requests."
        )
        raise invalid(message, param, "too_many_logprobs")


def num_of_prompts(request: GenerationRequest) -> int:
    """Returns the number of log probabilities for the request's prompts. Each choice reports those of its prompt."""
    num_top = request.sampling.prompt_logprobs
    if num_top is None:
        return 0
    return request.n * sum(map(len, request.prompts)) * (1 + num_top)


def bounded(request: GenerationRequest, max_tokens_param: str) -> GenerationRequest:
    """Limits a request whose answer is sent as a whole. A request without `max_tokens` gets the largest `max_tokens`
    that the limit allows. Raises ApiError if its own `max_tokens` allows too many log probabilities."""
    num_of_token = per_token(request.sampling)
    if not num_of_token:
        return request
    of_prompts = num_of_prompts(request)
    if request.stop.max_tokens is not None:
        check_num_logprobs(of_prompts + request.n * sum(request.max_tokens) * num_of_token, max_tokens_param)
        return request
    num_answers = request.n * len(request.prompts)
    longest = max(1, (MAX_LOGPROBS_OF_ANSWER - of_prompts) // (num_answers * num_of_token))
    return replace(request, max_tokens=tuple(min(count, longest) for count in request.max_tokens))


def per_token(sampling: SamplingParams) -> int:
    """Returns the number of log probabilities per output token: one of the token itself, and one per candidate."""
    if sampling.logprobs is None:
        return 0
    return 1 + (len(sampling.logprob_token_ids) or sampling.logprobs)
