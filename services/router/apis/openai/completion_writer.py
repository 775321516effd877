"""The answers of /v1/completions, streamed and whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from json.encoder import encode_basestring
from typing import Any

from services.router.apis.openai.json import (
    AnswerHead,
    ChunkTails,
    EchoedPrompt,
    completion_logprobs,
    echoed_offsets,
    end_of_stream,
    error_event,
    prompt_logprobs,
)
from services.router.dispatch import FinishReason
from services.router.errors import ApiError
from services.router.generation import ChoiceDelta, Usage
from services.router.http import EVENT_STREAM, TokenNames, dumps, texts_of
from services.router.logprobs import PromptLogprobs, TokenLogprobs

_FINISH_REASONS = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


@dataclass(frozen=True, slots=True)
class CompletionStyle:
    """The number of answers per prompt, and the optional parts of each answer."""

    # Number of answers returned per prompt.
    num_kept: int
    # Number of answers generated per prompt (`best_of`).
    num_candidates: int
    # Number of most likely tokens to return at each position; None: no log probabilities.
    num_top_logprobs: int | None = None
    # Whether a stream ends with the usage.
    with_usage: bool = False
    with_token_ids: bool = False
    with_prompt_logprobs: bool = False
    names_tokens_by_id: bool = False
    # Whether an echoed prompt includes the text of special tokens.
    echoes_special_tokens: bool = False


class _Choice:
    """One answer in progress."""

    __slots__ = (
        "echo", "finish_reason", "has_begun", "logprobs", "num_chars", "num_echoed", "offsets", "pieces",
        "prompt_logprobs", "stop_reason", "token_ids",
    )  # fmt: skip

    def __init__(self, echo: str) -> None:
        # Text that is not sent yet.
        self.pieces = [echo]
        # Offset, in the choice's whole text, of the first token that is not sent yet.
        self.num_chars = len(echo)
        self.logprobs = TokenLogprobs()
        # Log probabilities of the prompt; None until the first of them arrive.
        self.prompt_logprobs: PromptLogprobs | None = None
        self.echo = echo
        # For a stream that echoes log probabilities: number of prompt tokens sent, and the text offsets of the prompt
        # tokens that are not sent yet.
        self.num_echoed = 0
        self.offsets: Iterator[int] = iter(())
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        # Whether a chunk of this choice has been sent.
        self.has_begun = False

    @property
    def mean_logprob(self) -> float:
        return sum(self.logprobs.logprobs) / max(1, len(self.logprobs))


class CompletionWriter:
    """An AnswerWriter for /v1/completions."""

    stream_type = EVENT_STREAM
    repeats_answer = False

    def __init__(
        self, head: AnswerHead, style: CompletionStyle, prompts: Sequence[list[int]], echoes: Sequence[str] | None
    ) -> None:
        """`echoes`: for each prompt, the text with which its answers begin; None: prompts are not echoed."""
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
        if self._is_echoed and delta.prompt_logprobs is not None:
            return self._echo(delta)
        self.add(delta)
        text = "".join(choice.pieces)
        # The first token gets a chunk even if it has no text yet, because clients measure the time to the first token
        # by this chunk.
        if not (
            text
            or not choice.has_begun
            or delta.finish_reason is not None
            or (delta.token_ids and (style.num_top_logprobs is not None or style.with_token_ids))
        ):
            return b""
        choice.has_begun = True
        columns = None
        if style.num_top_logprobs is not None:
            columns = completion_logprobs(choice.logprobs, self._names, choice.num_chars)
        event = self._event(delta, text, columns, delta.finish_reason)
        choice.num_chars += sum(len(self._names.text(token_id)) for token_id in choice.logprobs.token_ids)
        choice.pieces.clear()
        choice.logprobs = TokenLogprobs()
        return event

    def _echo(self, delta: ChoiceDelta) -> bytes:
        """Returns the event with the next part of an echoed prompt and its log probabilities. The first part also has
        the prompt's first token, which has no log probability."""
        choice, entries = self._choices[delta.index], delta.prompt_logprobs or ()
        prompt, start = self._prompts[delta.index // self._style.num_candidates], choice.num_echoed
        if not start:
            choice.pieces.clear()
            choice.offsets = self._echoed_offsets(prompt, len(choice.echo))
        end = max(start, 1) + len(entries)
        offsets = list(islice(choice.offsets, end - start))
        is_last = end >= len(prompt)
        text_end = len(choice.echo)
        if not is_last:
            # The text of this part ends at the offset of the next part's first token.
            text_end = next(choice.offsets)
            choice.offsets = chain((text_end,), choice.offsets)
        part = EchoedPrompt(prompt[start:end], entries, offsets, self._style.num_top_logprobs or 0, not start)
        columns = completion_logprobs((), self._names, 0, part)
        choice.num_echoed, choice.has_begun = end, True
        return self._event(delta, choice.echo[offsets[0] : text_end], columns, None)

    def _event(
        self, delta: ChoiceDelta, text: str, columns: dict[str, Any] | None, finish_reason: FinishReason | None
    ) -> bytes:
        logprobs = "null" if columns is None else "".join(texts_of(columns))
        reason = "null" if finish_reason is None else f'"{_FINISH_REASONS[finish_reason]}"'
        more = "".join(
            f",{dumps(name)}:{''.join(texts_of(value))}" for name, value in self._extras(delta.index, streamed=True)
        )
        return (
            f'{self._start}{{"index":{delta.index},"text":{encode_basestring(text)},"logprobs":{logprobs},'
            f'"finish_reason":{reason}{more}}}]{self._tails.tail(delta.usage)}'
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
            if choice.prompt_logprobs is None:
                choice.prompt_logprobs = PromptLogprobs()
            choice.prompt_logprobs += delta.prompt_logprobs

    def whole(self, usage: Usage) -> Iterator[str]:
        choices = [self._choice(index, number) for number, index in enumerate(self._kept())]
        return texts_of(self._head.whole("text_completion", choices, usage))

    def _kept(self) -> list[int]:
        """Returns the indices of the answers to return: for each prompt, the answers with the highest log probability
        per token, best first. If all answers are returned, keeps their order."""
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
            # As in vLLM, these fields are null unless the request asks for them.
            "stop_reason": None,
            "token_ids": None,
            "prompt_token_ids": None,
            "prompt_logprobs": None,
            **dict(self._extras(index, streamed=False)),
        }

    def _logprobs(self, index: int, num_top: int) -> dict[str, Any]:
        """Returns the log probabilities of an echoed prompt's tokens, then of the answer's tokens."""
        choice, prompt = self._choices[index], None
        if self._is_echoed and choice.prompt_logprobs is not None:
            token_ids = self._prompts[index // self._style.num_candidates]
            offsets = self._echoed_offsets(token_ids, choice.num_chars)
            prompt = EchoedPrompt(token_ids, choice.prompt_logprobs, offsets, num_top)
        return completion_logprobs(choice.logprobs, self._names, choice.num_chars, prompt)

    def _echoed_offsets(self, token_ids: Sequence[int], end: int) -> Iterator[int]:
        skip = not self._style.echoes_special_tokens
        return echoed_offsets(token_ids, self._names, end, skip_special_tokens=skip)

    def _extras(self, index: int, *, streamed: bool) -> list[tuple[str, Any]]:
        """Returns those fields of the choice that only vLLM's API has, as (name, value). Leaves out fields that the
        request does not ask for."""
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
