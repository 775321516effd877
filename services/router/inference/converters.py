"""Between quire.inference.v1 and the router's own values."""

from __future__ import annotations

from typing import Any

from quire.inference.v1 import inference_pb2, sampling_pb2
from services.router.converters import sampling_from_proto, stop_from_proto
from services.router.errors import invalid, too_many
from services.router.generation import ChoiceDelta, Usage
from services.router.prompts import MAX_MESSAGES
from services.router.sampling import (
    SamplingParams,
    StopConditions,
    check_ranges,
    check_stop_strings,
    check_token_ids,
)
from services.router.submission import FinishReason, TokenLogprob

_FINISH_REASONS = {
    FinishReason.STOP: sampling_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: sampling_pb2.FINISH_REASON_LENGTH,
}


def options_from_proto(
    options: inference_pb2.GenerationOptions, vocab_size: int, max_n: int
) -> tuple[SamplingParams, StopConditions, tuple[str, ...], int]:
    """Sampling, stop conditions, stop strings and n. Raises ApiError where a value is out of range."""
    sampling, stop = sampling_from_proto(options.sampling), stop_from_proto(options.stop)
    sampling = check_ranges(sampling, "options.sampling.")
    check_token_ids(sampling, stop, vocab_size, "options.")
    if stop.max_tokens == 0:
        raise invalid("Invalid 'options.stop.max_tokens': expected at least 1, but got 0.", "options.stop.max_tokens")
    stop_strings = tuple(options.stop_strings)
    check_stop_strings(stop_strings, "options.stop_strings")
    n = options.n if options.HasField("n") else 1
    if not 1 <= n <= max_n:
        raise invalid(f"Invalid 'options.n': expected a value from 1 to {max_n}, but got {n}.", "options.n")
    return sampling, stop, stop_strings, n


def messages_from_proto(messages: Any) -> list[dict[str, Any]]:
    """As chat templates expect them. Raises ApiError where there are none or too many, or one has no role."""
    if not messages:
        raise invalid("Invalid 'messages': it must not be empty.", "messages", "empty_array")
    if len(messages) > MAX_MESSAGES:
        raise too_many("messages", MAX_MESSAGES, len(messages))
    for index, message in enumerate(messages):
        if not message.role:
            raise invalid(f"Missing required parameter: 'messages[{index}].role'.", f"messages[{index}].role")
    return [{"role": message.role, "content": message.content} for message in messages]


def delta_to_proto(delta: ChoiceDelta) -> inference_pb2.Delta:
    message = inference_pb2.Delta(choice_index=delta.index, text=delta.text, token_ids=delta.token_ids)
    if delta.logprobs:
        message.logprobs.extend(_logprob_to_proto(entry) for entry in delta.logprobs)
    if delta.finish_reason is not None:
        message.finish_reason = _FINISH_REASONS[delta.finish_reason]
    return message


def final_to_proto(usage: Usage) -> inference_pb2.Final:
    return inference_pb2.Final(
        usage=inference_pb2.Usage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
        )
    )


def _logprob_to_proto(entry: TokenLogprob) -> inference_pb2.TokenLogprob:
    return inference_pb2.TokenLogprob(
        token_id=entry.token_id,
        logprob=entry.logprob,
        top=[inference_pb2.TopLogprob(token_id=token_id, logprob=logprob) for token_id, logprob in entry.top],
    )
