"""What a client returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from quire.client.errors import StreamCutError
from quire.inference.v1 import inference_pb2, sampling_pb2

FinishReason = Literal["stop", "length"]
_FINISH_REASONS: dict[int, FinishReason] = {
    sampling_pb2.FINISH_REASON_STOP: "stop",
    sampling_pb2.FINISH_REASON_LENGTH: "length",
}


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log probability of one token, and (token id, log probability) of the likeliest at its place, likeliest first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """New output of one choice: whole characters; ids may run ahead of the text."""

    choice_index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    # With the choice's last delta.
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Choice:
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class Result:
    """A whole answer."""

    choices: tuple[Choice, ...]
    usage: Usage

    @property
    def text(self) -> str:
        """Of the first choice."""
        return self.choices[0].text


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    max_model_len: int


def delta_from_proto(message: inference_pb2.Delta) -> Delta:
    return Delta(
        choice_index=message.choice_index,
        text=message.text,
        token_ids=tuple(message.token_ids),
        logprobs=tuple(
            TokenLogprob(entry.token_id, entry.logprob, tuple((top.token_id, top.logprob) for top in entry.top))
            for entry in message.logprobs
        ),
        finish_reason=_FINISH_REASONS.get(message.finish_reason),
    )


def usage_from_proto(message: inference_pb2.Usage) -> Usage:
    return Usage(message.prompt_tokens, message.completion_tokens, message.cached_tokens)


@dataclass(slots=True)
class _Gathered:
    pieces: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None


class Gatherer:
    """Makes a Result of deltas."""

    def __init__(self) -> None:
        self._choices: dict[int, _Gathered] = {}

    def add(self, delta: Delta) -> None:
        choice = self._choices.setdefault(delta.choice_index, _Gathered())
        choice.pieces.append(delta.text)
        choice.token_ids += delta.token_ids
        choice.logprobs += delta.logprobs
        choice.finish_reason = delta.finish_reason

    def result(self, usage: Usage | None) -> Result:
        """Raises StreamCutError where some choice, or the usage, is missing."""
        choices = []
        for _, choice in sorted(self._choices.items()):
            if choice.finish_reason is None:
                raise StreamCutError
            choices.append(
                Choice("".join(choice.pieces), tuple(choice.token_ids), tuple(choice.logprobs), choice.finish_reason)
            )
        if usage is None or not choices:
            raise StreamCutError
        return Result(tuple(choices), usage)


@dataclass(frozen=True, slots=True)
class Embeddings:
    """A vector for each input, in their order."""

    vectors: tuple[tuple[float, ...], ...]
    usage: Usage


@dataclass(slots=True)
class VectorGatherer:
    """Collects what one call to Embed brings."""

    vectors: dict[int, tuple[float, ...]] = field(default_factory=dict)
    usage: Usage | None = None

    def add(self, message: inference_pb2.EmbedResponse) -> None:
        if message.WhichOneof("event") == "final":
            self.usage = usage_from_proto(message.final.usage)
        else:
            self.vectors[message.embedding.index] = tuple(message.embedding.values)

    def result(self) -> Embeddings:
        """Raises StreamCutError where the final message is missing."""
        if self.usage is None:
            raise StreamCutError
        return Embeddings(tuple(self.vectors[index] for index in range(len(self.vectors))), self.usage)
