"""The values that the clients return."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from quire.client.errors import StreamCutError
from quire.inference.v1 import inference_pb2, sampling_pb2

FinishReason = Literal["stop", "length", "tool_calls"]
_FINISH_REASONS: dict[int, FinishReason] = {
    sampling_pb2.FINISH_REASON_STOP: "stop",
    sampling_pb2.FINISH_REASON_LENGTH: "length",
    sampling_pb2.FINISH_REASON_TOOL_CALLS: "tool_calls",
}
ModelTask = Literal["generate", "embed", "classify"]
_TASKS: dict[int, ModelTask] = {
    inference_pb2.MODEL_TASK_GENERATE: "generate",
    inference_pb2.MODEL_TASK_EMBED: "embed",
    inference_pb2.MODEL_TASK_CLASSIFY: "classify",
}


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log probability of one token. `top`: pairs of token id and log probability of the likeliest tokens at its
    position, likeliest first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    # For prompt tokens: the number of likelier tokens plus 1. None for output tokens.
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A new piece of one tool call. The first delta of a call has its id and name; every delta has a piece of its
    arguments, as JSON."""

    # Index of the call within its choice.
    index: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    # JSON text as the model wrote it.
    arguments: str


@dataclass(frozen=True, slots=True)
class Delta:
    """New output of one choice. The text consists of whole characters, so token ids can arrive before their text."""

    choice_index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    # Set in the choice's last delta.
    finish_reason: FinishReason | None
    # The model's reasoning in a chat; not part of the text.
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    # Log probabilities of the prompt's tokens from the second on, in the choice's first delta if requested.
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    # Stop string or entry of `stop_token_ids` that ended the choice, in its last delta.
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    # Number of completion tokens that belong to the model's reasoning.
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Durations of a request, in seconds. All of them begin when the router submits the request to a scheduler. None:
    the event at which the duration ends did not happen."""

    # Until a scheduler planned the first step for any choice.
    queue: float | None
    # Until the router received the first token of any choice.
    first_token: float | None
    # Until the router received the last token of any choice.
    last_token: float | None
    # Until the choice that ended last had ended.
    total: float


@dataclass(frozen=True, slots=True)
class Choice:
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: FinishReason
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    # Log probabilities of the prompt's tokens from the second on, if requested.
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    # Stop string or entry of `stop_token_ids` that ended the choice.
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A whole answer."""

    choices: tuple[Choice, ...]
    usage: Usage
    # The prompt's token ids after truncation, if requested.
    prompt_token_ids: tuple[int, ...] = ()
    timings: Timings | None = None

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return self.choices[0].text

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls of the first choice."""
        return self.choices[0].tool_calls


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    max_model_len: int
    # Name of the underlying model; differs from `name` for an alias.
    root: str
    # The tasks that the model supports.
    tasks: tuple[ModelTask, ...]
    # Identifies the model: changes with its name, architecture, data type or tokenizer.
    fingerprint: str


def model_from_proto(message: inference_pb2.Model) -> Model:
    tasks = tuple(_TASKS[task] for task in message.tasks if task in _TASKS)
    return Model(message.name, message.max_model_len, message.root, tasks, message.fingerprint)


def delta_from_proto(message: inference_pb2.Delta) -> Delta:
    return Delta(
        choice_index=message.choice_index,
        text=message.text,
        token_ids=tuple(message.token_ids),
        logprobs=_logprobs(message.logprobs),
        finish_reason=_FINISH_REASONS.get(message.finish_reason),
        reasoning=message.reasoning,
        tool_calls=tuple(ToolCallDelta(call.index, call.id, call.name, call.arguments) for call in message.tool_calls),
        prompt_logprobs=_logprobs(message.prompt_logprobs),
        stop_reason=_stop_reason(message),
    )


def _logprobs(entries: Iterable[inference_pb2.TokenLogprob]) -> tuple[TokenLogprob, ...]:
    return tuple(
        TokenLogprob(
            entry.token_id,
            entry.logprob,
            tuple((top.token_id, top.logprob) for top in entry.top),
            entry.rank if entry.HasField("rank") else None,
        )
        for entry in entries
    )


def _stop_reason(message: inference_pb2.Delta) -> str | int | None:
    match message.WhichOneof("stop_reason"):
        case "stop_string":
            return message.stop_string
        case "stop_token_id":
            return message.stop_token_id
        case _:
            return None


def usage_from_proto(message: inference_pb2.Usage) -> Usage:
    return Usage(message.prompt_tokens, message.completion_tokens, message.cached_tokens, message.reasoning_tokens)


def timings_from_proto(final: inference_pb2.Final) -> Timings | None:
    if not final.HasField("timings"):
        return None
    message = final.timings
    return Timings(
        message.queue_seconds if message.HasField("queue_seconds") else None,
        message.first_token_seconds if message.HasField("first_token_seconds") else None,
        message.last_token_seconds if message.HasField("last_token_seconds") else None,
        message.total_seconds,
    )


@dataclass(slots=True)
class _Gathered:
    pieces: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    stop_reason: str | int | None = None
    reasoning: list[str] = field(default_factory=list)
    # The first delta of each tool call, and the pieces of the call's arguments.
    calls: list[tuple[ToolCallDelta, list[str]]] = field(default_factory=list)

    def add_call(self, delta: ToolCallDelta) -> None:
        if delta.index == len(self.calls):
            self.calls.append((delta, []))
        self.calls[delta.index][1].append(delta.arguments)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(ToolCall(first.id, first.name, "".join(pieces)) for first, pieces in self.calls)


class Gatherer:
    """Combines deltas into a Result."""

    def __init__(self) -> None:
        self._choices: dict[int, _Gathered] = {}

    def add(self, delta: Delta) -> None:
        choice = self._choices.setdefault(delta.choice_index, _Gathered())
        choice.pieces.append(delta.text)
        choice.token_ids += delta.token_ids
        choice.logprobs += delta.logprobs
        choice.reasoning.append(delta.reasoning)
        for call in delta.tool_calls:
            choice.add_call(call)
        choice.finish_reason = delta.finish_reason
        choice.prompt_logprobs += delta.prompt_logprobs
        choice.stop_reason = delta.stop_reason

    def result(self, usage: Usage | None, prompt_token_ids: tuple[int, ...], timings: Timings | None) -> Result:
        """Returns the combined answer. Raises StreamCutError if a choice is incomplete or the usage is missing."""
        choices = []
        for _, choice in sorted(self._choices.items()):
            if choice.finish_reason is None:
                raise StreamCutError
            choices.append(
                Choice(
                    "".join(choice.pieces),
                    tuple(choice.token_ids),
                    tuple(choice.logprobs),
                    choice.finish_reason,
                    "".join(choice.reasoning),
                    choice.tool_calls,
                    choice.prompt_logprobs,
                    choice.stop_reason,
                )
            )
        if usage is None or not choices:
            raise StreamCutError
        return Result(tuple(choices), usage, prompt_token_ids, timings)


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Embeddings: one vector per input, in input order."""

    vectors: tuple[tuple[float, ...], ...]
    usage: Usage
    # Token ids of each input if requested, else empty.
    prompt_token_ids: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Scores:
    """One score per pair of texts, in the order of `text_2`: the cosine similarity of the embeddings, from -1 to 1, or
    the score that a cross-encoder gives to the pair."""

    scores: tuple[float, ...]
    usage: Usage


@dataclass(slots=True)
class VectorGatherer:
    """Combines the messages of one Embed call."""

    vectors: dict[int, tuple[float, ...]] = field(default_factory=dict)
    prompt_token_ids: dict[int, tuple[int, ...]] = field(default_factory=dict)
    usage: Usage | None = None

    def add(self, message: inference_pb2.EmbedResponse) -> None:
        if message.WhichOneof("event") == "final":
            self.usage = usage_from_proto(message.final.usage)
        else:
            self.vectors[message.embedding.index] = tuple(message.embedding.values)
            self.prompt_token_ids[message.embedding.index] = tuple(message.embedding.prompt_token_ids)

    def result(self) -> Embeddings:
        """Returns the embeddings. Raises StreamCutError if the final message is missing."""
        if self.usage is None:
            raise StreamCutError
        indices = range(len(self.vectors))
        prompts = tuple(self.prompt_token_ids[index] for index in indices)
        return Embeddings(tuple(self.vectors[index] for index in indices), self.usage, prompts if any(prompts) else ())
