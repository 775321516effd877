"""Limits the number of log probabilities in an answer, before anything is computed."""

from __future__ import annotations

from dataclasses import replace

from services.router.errors import invalid
from services.router.generation.request import GenerationRequest
from services.router.parameters import SamplingParams

# Maximum number of log probabilities in one answer: one per token, and one per candidate of each token. An answer of
# this size has about 200 MB of JSON, and takes 25 MB of the router's memory while it waits for the client.
MAX_LOGPROBS_OF_ANSWER = 2**21


def check_num_logprobs(count: int, param: str) -> None:
    """Raises ApiError if `count` exceeds MAX_LOGPROBS_OF_ANSWER. `param`: the request field that the error names."""
    if count > MAX_LOGPROBS_OF_ANSWER:
        message = (
            f"Invalid '{param}': the answer could have {count} log probabilities (answers × tokens × log "
            f"probabilities per token); the maximum is {MAX_LOGPROBS_OF_ANSWER}. Ask for fewer tokens, answers "
            "or candidates, or send several requests."
        )
        raise invalid(message, param, "too_many_logprobs")


def num_of_prompts(request: GenerationRequest) -> int:
    """Returns the number of log probabilities that the answer has for prompt tokens. Those of one prompt count `n`
    times, because each of the prompt's `n` choices repeats them."""
    num_top = request.sampling.prompt_logprobs
    if num_top is None:
        return 0
    return request.n * sum(map(len, request.prompts)) * (1 + num_top)


def bounded(request: GenerationRequest, max_tokens_param: str) -> GenerationRequest:
    """Returns a request whose answer, which is sent as a whole, has at most MAX_LOGPROBS_OF_ANSWER log probabilities.
    If the client set no `max_tokens`, lowers the token limits as far as needed. Otherwise raises ApiError if the
    client's `max_tokens` allows too many; the error names the field `max_tokens_param`."""
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
    """Returns the number of log probabilities per output token: one for the token itself, and one per candidate. 0 if
    the request asks for none."""
    if sampling.logprobs is None:
        return 0
    return 1 + (len(sampling.logprob_token_ids) or sampling.logprobs)
