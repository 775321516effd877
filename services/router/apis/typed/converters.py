"""Conversion between quire.inference.v1 and the router's own types."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from quire.inference.v1 import constraints_pb2, inference_pb2, sampling_pb2
from services.router.chat import EndReason, MessageDelta
from services.router.constraints import MAX_BAD_WORDS
from services.router.dispatch import FinishReason, sampling_from_proto, stop_from_proto
from services.router.errors import invalid, too_many
from services.router.generation import MAX_CHARS_OF_DELTA, ChoiceDelta, GenerationOptions, Timings, Usage
from services.router.grammar import MAX_STRUCTURE_CHOICES, Structure, StructureKind
from services.router.logprobs import PromptLogprob, TokenLogprob
from services.router.parameters import (
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_STOP_TOKEN_IDS,
    Truncation,
    check_ranges,
    check_stop_strings,
)

_FINISH_REASONS = {
    FinishReason.STOP: sampling_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: sampling_pb2.FINISH_REASON_LENGTH,
}
_END_REASONS = {
    EndReason.STOP: sampling_pb2.FINISH_REASON_STOP,
    EndReason.LENGTH: sampling_pb2.FINISH_REASON_LENGTH,
    EndReason.TOOL_CALLS: sampling_pb2.FINISH_REASON_TOOL_CALLS,
}
_OPTIONS = "options."
MAX_TOKENS_PARAM = f"{_OPTIONS}stop.max_tokens"


def options_from_proto(options: inference_pb2.GenerationOptions, max_n: int) -> GenerationOptions:
    """Converts generation options. Raises ApiError if a value is invalid."""
    for name, entries, limit in (
        ("sampling.logit_bias", options.sampling.logit_bias, MAX_LOGIT_BIAS),
        ("sampling.logprob_token_ids", options.sampling.logprob_token_ids, MAX_LOGPROBS),
        ("stop.stop_token_ids", options.stop.stop_token_ids, MAX_STOP_TOKEN_IDS),
        ("bad_words", options.bad_words, MAX_BAD_WORDS),
        ("structure.choices.texts", options.structure.choices.texts, MAX_STRUCTURE_CHOICES),
    ):
        if len(entries) > limit:
            raise too_many(f"{_OPTIONS}{name}", limit, len(entries))
    stop = stop_from_proto(options.stop)
    if stop.max_tokens == 0:
        raise invalid("Invalid 'options.stop.max_tokens': expected at least 1, but got 0.", "options.stop.max_tokens")
    stop_strings = tuple(options.stop_strings)
    check_stop_strings(stop_strings, "options.stop_strings")
    n = options.n if options.HasField("n") else 1
    if not 1 <= n <= max_n:
        raise invalid(f"Invalid 'options.n': expected a value from 1 to {max_n}, but got {n}.", "options.n")
    allowed = tuple(options.allowed_token_ids)
    return GenerationOptions(
        sampling=check_ranges(sampling_from_proto(options.sampling), f"{_OPTIONS}sampling."),
        stop=stop,
        stop_strings=stop_strings,
        structure=_structure_from_proto(options.structure),
        allowed_token_ids=allowed or None,
        bad_words=tuple(options.bad_words),
        n=n,
        skip_special_tokens=options.skip_special_tokens if options.HasField("skip_special_tokens") else True,
        includes_stop=options.include_stop_str_in_output,
        truncation=_truncation_from_proto(options),
        cache_salt=options.cache_salt,
        priority=options.priority,
        prompt_cache_key=options.prompt_cache_key,
        path=_OPTIONS,
        prompt_logprobs_param=f"{_OPTIONS}sampling.prompt_logprobs",
    )


def _truncation_from_proto(options: inference_pb2.GenerationOptions) -> Truncation | None:
    """Returns how the prompt is to be truncated; None: not at all. Raises ApiError if the number of tokens to keep is
    invalid."""
    if not options.HasField("truncate_prompt_tokens"):
        return None
    given, param = options.truncate_prompt_tokens, f"{_OPTIONS}truncate_prompt_tokens"
    if given == 0 or given < -1:
        raise invalid(f"Invalid '{param}': expected -1 or at least 1, but got {given}.", param, "invalid_value")
    keeps_beginning = options.truncation_side == inference_pb2.TRUNCATION_SIDE_RIGHT
    return Truncation(None if given < 0 else given, keeps_beginning)


def _structure_from_proto(structure: constraints_pb2.Structure) -> Structure | None:
    """Returns the structure of the output, if any. Raises ApiError for an empty list of choices."""
    kind = structure.WhichOneof("kind")
    if kind is None:
        return None
    param = f"{_OPTIONS}structure.{kind}"
    match kind:
        case "json_schema":
            return Structure(StructureKind.JSON_SCHEMA, structure.json_schema, param)
        case "json_object":
            return Structure(StructureKind.JSON_OBJECT, "", param)
        case "regex":
            return Structure(StructureKind.REGEX, structure.regex, param)
        case "grammar":
            return Structure(StructureKind.GRAMMAR, structure.grammar, param)
        case "choices":
            if not structure.choices.texts:
                raise invalid(f"Invalid '{param}.texts': it must not be empty.", f"{param}.texts", "empty_array")
            return Structure(StructureKind.CHOICE, json.dumps(list(structure.choices.texts)), param)


def chat_deltas_to_proto(parsed: MessageDelta, message: inference_pb2.Delta) -> Iterator[inference_pb2.Delta]:
    """Yields `message` with its text replaced by the parsed content, reasoning and tool calls, and its finish reason by
    the parsed one. Long texts precede it in deltas of their own: a parser can hold back millions of spaces, for
    example, until it knows whether they are content."""
    index, calls = message.choice_index, parsed.tool_calls
    num_chars = len(parsed.content) + len(parsed.reasoning) + sum(len(call.arguments) for call in calls)
    if num_chars > MAX_CHARS_OF_DELTA:
        for text in _short(parsed.reasoning):
            yield inference_pb2.Delta(choice_index=index, reasoning=text)
        for text in _short(parsed.content):
            yield inference_pb2.Delta(choice_index=index, text=text)
        for call in calls:
            part = inference_pb2.ToolCallDelta(index=call.index, id=call.id, name=call.name)
            for text in _short(call.arguments) or [""]:
                part.arguments = text
                yield inference_pb2.Delta(choice_index=index, tool_calls=[part])
                part.ClearField("id")
                part.ClearField("name")
        message.text = ""
    else:
        message.text, message.reasoning = parsed.content, parsed.reasoning
        message.tool_calls.extend(
            inference_pb2.ToolCallDelta(index=call.index, id=call.id, name=call.name, arguments=call.arguments)
            for call in calls
        )
    if parsed.end_reason is not None:
        message.finish_reason = _END_REASONS[parsed.end_reason]
    yield message


def _short(text: str) -> list[str]:
    return [text[start : start + MAX_CHARS_OF_DELTA] for start in range(0, len(text), MAX_CHARS_OF_DELTA)]


class DeltaConverter:
    """Converts the deltas of one request to protos. The deltas of each choice must be passed in their order."""

    def __init__(self, prompt_token_ids: Sequence[int]) -> None:
        self._prompt_token_ids = prompt_token_ids
        # By choice: position of the prompt token that the next prompt log probability belongs to.
        self._positions: dict[int, int] = {}

    def __call__(self, delta: ChoiceDelta) -> inference_pb2.Delta:
        message = _delta_to_proto(delta)
        if delta.prompt_logprobs:
            start = self._positions.get(delta.index, 1)
            end = self._positions[delta.index] = start + len(delta.prompt_logprobs)
            following = zip(self._prompt_token_ids[start:end], delta.prompt_logprobs, strict=True)
            message.prompt_logprobs.extend(_prompt_logprob_to_proto(token_id, entry) for token_id, entry in following)
        return message


def _delta_to_proto(delta: ChoiceDelta) -> inference_pb2.Delta:
    message = inference_pb2.Delta(choice_index=delta.index, text=delta.text, token_ids=delta.token_ids)
    if delta.logprobs:
        message.logprobs.extend(_logprob_to_proto(entry) for entry in delta.logprobs)
    if delta.finish_reason is not None:
        message.finish_reason = _FINISH_REASONS[delta.finish_reason]
    if isinstance(delta.stop_reason, str):
        message.stop_string = delta.stop_reason
    elif delta.stop_reason is not None:
        message.stop_token_id = delta.stop_reason
    return message


def final_to_proto(
    usage: Usage, prompt_token_ids: Sequence[int] = (), timings: Timings | None = None
) -> inference_pb2.Final:
    return inference_pb2.Final(
        usage=usage_to_proto(usage),
        prompt_token_ids=prompt_token_ids,
        timings=None if timings is None else _timings_to_proto(timings),
    )


def _timings_to_proto(timings: Timings) -> inference_pb2.Timings:
    return inference_pb2.Timings(
        queue_seconds=timings.queue,
        first_token_seconds=timings.first_token,
        last_token_seconds=timings.last_token,
        total_seconds=timings.total,
    )


def usage_to_proto(usage: Usage) -> inference_pb2.Usage:
    return inference_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        reasoning_tokens=usage.reasoning_tokens,
    )


def _logprob_to_proto(entry: TokenLogprob) -> inference_pb2.TokenLogprob:
    return inference_pb2.TokenLogprob(token_id=entry.token_id, logprob=entry.logprob, top=_top_to_proto(entry.top))


def _prompt_logprob_to_proto(token_id: int, entry: PromptLogprob) -> inference_pb2.TokenLogprob:
    top = _top_to_proto(entry.top)
    return inference_pb2.TokenLogprob(token_id=token_id, logprob=entry.logprob, top=top, rank=entry.rank)


def _top_to_proto(top: Iterable[tuple[int, float]]) -> list[inference_pb2.TopLogprob]:
    return [inference_pb2.TopLogprob(token_id=token_id, logprob=logprob) for token_id, logprob in top]
