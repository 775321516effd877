"""/v1/completions: its body, how prompts become tokens, and its answers, streamed and whole."""

from __future__ import annotations

from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Annotated, Any

from pydantic import Field, Tag

from services.router.answers import EVENT_STREAM, Answers
from services.router.calls import caller_of
from services.router.errors import ApiError, ErrorKind, invalid
from services.router.generation import ChoiceDelta, Generator, Usage
from services.router.model import ServedModel, check_generates, output_budget
from services.router.openai.body import GenerationBody, union
from services.router.openai.json import AnswerHead, completion_logprobs, dump, dumps, end_of_stream, error_event
from services.router.prompts import check_length, check_token_range
from services.router.submission import FinishReason, TokenLogprob
from services.router.tracing import Tracing

# Across prompts and n.
MAX_CHOICES = 1024
DEFAULT_COMPLETION_TOKENS = 16
_FINISH_REASONS = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


def _prompt_kind(value: object) -> str | None:
    if isinstance(value, str):
        return "#string"
    if not isinstance(value, list):
        return None
    first = value[0] if value else None
    return "#strings" if isinstance(first, str) else "#token_lists" if isinstance(first, list) else "#tokens"


class CompletionRequest(GenerationBody):
    prompt: Annotated[
        Annotated[str, Tag("#string")]
        | Annotated[list[str], Tag("#strings")]
        | Annotated[list[int], Tag("#tokens")]
        | Annotated[list[list[int]], Tag("#token_lists")],
        union(_prompt_kind, "a string, an array of strings, token ids or arrays of token ids"),
    ]
    logprobs: int | None = Field(None, ge=0, le=5)
    echo: bool | None = None
    best_of: int | None = Field(None, ge=1)

    def check(self, max_n: int) -> None:
        super().check(max_n)
        if not self.prompt and not isinstance(self.prompt, str):
            raise invalid("Invalid 'prompt': it must not be empty.", "prompt", "empty_array")
        num_choices = (len(self.texts) + len(self.token_prompts)) * (self.n or 1)
        if num_choices > MAX_CHOICES:
            raise invalid(f"Invalid 'prompt': it asks for {num_choices} answers; {MAX_CHOICES} at most.", "prompt")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ApiError(
                ErrorKind.UNSUPPORTED, "'best_of' other than 'n' is not supported by this server.", "best_of"
            )
        if self.echo and self.logprobs is not None:
            message = "'logprobs' together with 'echo' is not supported by this server yet."
            raise ApiError(ErrorKind.UNSUPPORTED, message, "logprobs")

    @property
    def texts(self) -> list[str]:
        """The prompts, if they are texts."""
        given: Any = self.prompt
        if isinstance(given, str):
            return [given]
        return given if isinstance(given[0], str) else []

    @property
    def token_prompts(self) -> list[list[int]]:
        """The prompts, if they are token ids."""
        given: Any = self.prompt
        if isinstance(given[:1], str) or isinstance(given[0], str):
            return []
        return [given] if isinstance(given[0], int) else given

    def param(self, index: int) -> str:
        """The name of prompt `index` in errors."""
        return "prompt" if isinstance(self.prompt, str) or isinstance(self.prompt[0], int) else f"prompt[{index}]"


@dataclass(frozen=True, slots=True)
class CompletionService:
    generator: Generator
    answers: Answers
    tracing: Tracing

    async def answer(self, body: CompletionRequest, context: Any) -> None:
        """Raises ApiError as long as nothing is written."""
        caller, options = caller_of(context), body.options(body.max_tokens, body.logprobs)
        model = await self.generator.placement.model(body.model)
        with self.tracing.request("text_completion", model.info.name, caller.traceparent) as span:
            check_generates(model.info)
            prompts = await _encode(body, model)
            max_tokens = tuple(_budget(model, prompt, body.max_tokens) for prompt in prompts)
            request = options.request(model, caller, span.traceparent, tuple(prompts), max_tokens)
            echoes = await _echoes(body, model) if body.echo else [""] * len(prompts)
            writer = CompletionWriter(
                AnswerHead.new("cmpl", model), body.logprobs is not None, body.include_usage,
                [echo for echo in echoes for _ in range(options.n)],
            )  # fmt: skip
            await self.answers.send(request, span, context, writer, stream=bool(body.stream))


class CompletionWriter:
    """An AnswerWriter."""

    stream_type = EVENT_STREAM

    def __init__(self, head: AnswerHead, with_logprobs: bool, with_usage: bool, echoes: list[str]) -> None:
        """`with_usage`: whether a stream ends with it. `echoes`: what each choice's text begins with."""
        self._head = head
        self._start = head.of_chunk("text_completion")
        self._vocabulary = head.vocabulary if with_logprobs else None
        self._with_usage = with_usage
        self._tail = ',"usage":null}\n\n' if with_usage else "}\n\n"
        # Of each choice: what of its text was not sent yet, and where the text of its next token begins.
        self._pieces = [[echo] for echo in echoes]
        self._offsets = [len(echo) for echo in echoes]
        self._logprobs: list[list[TokenLogprob]] = [[] for _ in echoes]
        self._finish_reasons: list[FinishReason | None] = [None] * len(echoes)

    def events(self, delta: ChoiceDelta) -> bytes:
        text = "".join((*self._pieces[delta.index], delta.text))
        self._pieces[delta.index].clear()
        if not (text or delta.finish_reason is not None or (delta.logprobs and self._vocabulary is not None)):
            return b""
        logprobs = "null"
        if self._vocabulary is not None:
            offset = self._offsets[delta.index]
            columns = completion_logprobs(delta.logprobs, self._vocabulary, offset)
            self._offsets[delta.index] = offset + sum(map(len, columns["tokens"]))
            logprobs = dumps(columns)
        reason = "null" if delta.finish_reason is None else f'"{_FINISH_REASONS[delta.finish_reason]}"'
        return (
            f'{self._start}{{"index":{delta.index},"text":{encode_basestring(text)},'
            f'"logprobs":{logprobs},"finish_reason":{reason}}}]{self._tail}'
        ).encode()

    def end(self, usage: Usage) -> bytes:
        return end_of_stream(self._start, usage if self._with_usage else None)

    def error(self, error: ApiError) -> bytes:
        return error_event(error)

    def add(self, delta: ChoiceDelta) -> None:
        self._pieces[delta.index].append(delta.text)
        self._logprobs[delta.index] += delta.logprobs
        self._finish_reasons[delta.index] = delta.finish_reason

    def whole(self, usage: Usage) -> bytes:
        choices = [self._choice(index) for index in range(len(self._pieces))]
        return dump(self._head.whole("text_completion", choices, usage))

    def _choice(self, index: int) -> dict[str, Any]:
        logprobs, reason = None, self._finish_reasons[index]
        if self._vocabulary is not None:
            logprobs = completion_logprobs(self._logprobs[index], self._vocabulary, self._offsets[index])
        return {
            "index": index,
            "text": "".join(self._pieces[index]),
            "logprobs": logprobs,
            "finish_reason": None if reason is None else _FINISH_REASONS[reason],
        }


async def _encode(body: CompletionRequest, model: ServedModel) -> list[list[int]]:
    texts, token_prompts = body.texts, body.token_prompts
    for index, text in enumerate(texts):
        check_length(model, text, body.param(index))
    for index, token_ids in enumerate(token_prompts):
        check_length(model, token_ids, body.param(index))
        check_token_range(model, token_ids, body.param(index))
    return token_prompts or await model.tokenizer.encode(texts, body.add_special_tokens is not False)


async def _echoes(body: CompletionRequest, model: ServedModel) -> list[str]:
    return body.texts or await model.tokenizer.decode(body.token_prompts, skip_special_tokens=True)


def _budget(model: ServedModel, prompt: list[int], max_tokens: int | None) -> int:
    if max_tokens is not None:
        return output_budget(model.info, len(prompt), max_tokens, ("prompt", "max_tokens"))
    return min(DEFAULT_COMPLETION_TOKENS, output_budget(model.info, len(prompt), None, ("prompt", "max_tokens")))
