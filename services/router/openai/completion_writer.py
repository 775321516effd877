"""The answers of /v1/completions, streamed and whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any

from services.router.answers import EVENT_STREAM
from services.router.errors import ApiError
from services.router.generation import ChoiceDelta, Usage
from services.router.openai.json import (
    AnswerHead,
    ChunkTails,
    TokenNames,
    completion_logprobs,
    dump,
    dumps,
    echoed_logprobs,
    end_of_stream,
    error_event,
    joined_columns,
    prompt_logprobs,
)
from services.router.submission import FinishReason, TokenLogprob

_FINISH_REASONS = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


@dataclass(frozen=True, slots=True)
class CompletionStyle:
    """What an answer tells besides its text."""

    # Of each prompt's answers; the others are generated and left out.
    num_kept: int
    num_candidates: int
    # How many of the likeliest tokens to tell of; None: no log probabilities at all.
    num_top_logprobs: int | None = None
    # At the end of a stream.
    with_usage: bool = False
    with_token_ids: bool = False
    with_prompt_logprobs: bool = False
    names_tokens_by_id: bool = False
    # Whether a prompt that is echoed has the text of special tokens.
    echoes_special_tokens: bool = False


class _Choice:
    """One answer as it grows."""

    __slots__ = (
        "finish_reason", "has_begun", "logprobs", "num_chars", "pieces", "prompt_logprobs", "stop_reason", "token_ids",
    )  # fmt: skip

    def __init__(self, echo: str) -> None:
        # Text that was not sent yet, and where that of the next token begins.
        self.pieces = [echo]
        self.num_chars = len(echo)
        self.logprobs: list[TokenLogprob] = []
        # Of its prompt; None where they have not come, or were told.
        self.prompt_logprobs: list[Any] | None = None
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        # Whether a stream has told of it.
        self.has_begun = False

    @property
    def mean_logprob(self) -> float:
        return sum(entry.logprob for entry in self.logprobs) / max(1, len(self.logprobs))


class CompletionWriter:
    """An AnswerWriter."""

    stream_type = EVENT_STREAM

    def __init__(
        self, head: AnswerHead, style: CompletionStyle, prompts: Sequence[list[int]], echoes: Sequence[str] | None
    ) -> None:
        """`echoes`: what the answers to each prompt begin with."""
        self._head = head
        self._style = style
        self._start = head.of_chunk("text_completion")
        self._names = TokenNames(head.vocabulary, style.names_tokens_by_id)
        self._prompts = prompts
        self._is_echoed = echoes is not None
        self._choices = [_Choice(echo) for echo in echoes or [""] * len(prompts) for _ in range(style.num_candidates)]
        self._told_prompt: set[int] = set()
        self._tails = ChunkTails(style.with_usage)

    def events(self, delta: ChoiceDelta) -> bytes:
        choice, style = self._choices[delta.index], self._style
        self.add(delta)
        text = "".join(choice.pieces)
        # The first token has a chunk, whether it has text yet or not: clients measure by it.
        if not (
            text
            or not choice.has_begun
            or delta.finish_reason is not None
            or (delta.token_ids and (style.num_top_logprobs is not None or style.with_token_ids))
        ):
            return b""
        choice.has_begun = True
        logprobs = (
            "null" if style.num_top_logprobs is None else dumps(self._logprobs(delta.index, style.num_top_logprobs))
        )
        choice.pieces.clear()
        choice.logprobs.clear()
        reason = "null" if delta.finish_reason is None else f'"{_FINISH_REASONS[delta.finish_reason]}"'
        more = "".join(f",{dumps(name)}:{dumps(value)}" for name, value in self._extras(delta.index, streamed=True))
        return (
            f'{self._start}{{"index":{delta.index},"text":{encode_basestring(text)},'
            f'"logprobs":{logprobs},"finish_reason":{reason}{more}}}]{self._tails.tail(delta.usage)}'
        ).encode()

    def end(self, usage: Usage) -> bytes:
        return end_of_stream(self._start, usage if self._style.with_usage else None)

    def error(self, error: ApiError) -> bytes:
        return error_event(error)

    def add(self, delta: ChoiceDelta) -> None:
        choice = self._choices[delta.index]
        choice.pieces.append(delta.text)
        choice.logprobs += delta.logprobs
        choice.token_ids += delta.token_ids
        choice.finish_reason, choice.stop_reason = delta.finish_reason, delta.stop_reason
        if delta.prompt_logprobs is not None:
            choice.prompt_logprobs = delta.prompt_logprobs

    def whole(self, usage: Usage) -> bytes:
        choices = [self._choice(index, number) for number, index in enumerate(self._kept())]
        return dump(self._head.whole("text_completion", choices, usage))

    def _kept(self) -> list[int]:
        """Of each prompt's answers those with the highest log probability per token, the best first; where none is left
        out, all in their order."""
        kept, num_kept, num_candidates = [], self._style.num_kept, self._style.num_candidates
        for start in range(0, len(self._choices), num_candidates):
            candidates = list(range(start, start + num_candidates))
            if num_kept < num_candidates:
                candidates.sort(key=lambda index: -self._choices[index].mean_logprob)
            kept += candidates[:num_kept]
        return kept

    def _choice(self, index: int, number: int) -> dict[str, Any]:
        choice, num_top = self._choices[index], self._style.num_top_logprobs
        return {
            "index": number,
            "text": "".join(choice.pieces),
            "logprobs": None if num_top is None else self._logprobs(index, num_top),
            "finish_reason": None if choice.finish_reason is None else _FINISH_REASONS[choice.finish_reason],
            # Null, as vLLM has them, where they were not asked for.
            "stop_reason": None,
            "token_ids": None,
            "prompt_token_ids": None,
            "prompt_logprobs": None,
            **dict(self._extras(index, streamed=False)),
        }

    def _logprobs(self, index: int, num_top: int) -> dict[str, Any]:
        """Of the tokens that were not told yet; an echoed prompt's before them."""
        choice, first = self._choices[index], None
        if self._is_echoed and choice.prompt_logprobs is not None:
            prompt = self._prompts[index // self._style.num_candidates]
            first = echoed_logprobs(
                prompt, choice.prompt_logprobs, self._names, choice.num_chars, num_top,
                skip_special_tokens=not self._style.echoes_special_tokens,
            )  # fmt: skip
            if not self._style.with_prompt_logprobs:
                choice.prompt_logprobs = None
        columns, choice.num_chars = completion_logprobs(choice.logprobs, self._names, choice.num_chars)
        return joined_columns(first, columns)

    def _extras(self, index: int, *, streamed: bool) -> list[tuple[str, Any]]:
        """What vLLM's answers have besides OpenAI's."""
        choice, prompt = self._choices[index], self._prompts[index // self._style.num_candidates]
        extras: list[tuple[str, Any]] = []
        if choice.finish_reason is not None:
            extras.append(("stop_reason", choice.stop_reason))
        if self._style.with_token_ids:
            extras.append(("token_ids", choice.token_ids.copy()))
            if index not in self._told_prompt:
                self._told_prompt.add(index)
                extras.append(("prompt_token_ids", prompt))
            if streamed:
                choice.token_ids.clear()
        if self._style.with_prompt_logprobs and choice.prompt_logprobs is not None:
            extras.append(("prompt_logprobs", prompt_logprobs(prompt, choice.prompt_logprobs, self._names)))
        return extras
