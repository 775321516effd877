"""/v1/completions: its body, and the tokenization of its prompts."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, Tag

from services.router.apis.openai.body import GenerationBody
from services.router.apis.openai.completion_writer import CompletionStyle, CompletionWriter
from services.router.apis.openai.json import AnswerHead
from services.router.columns import ids_to_bytes
from services.router.errors import invalid
from services.router.generation import GenerationOptions, Generator, Tracing
from services.router.http import Answers, union
from services.router.model import ServedModel
from services.router.parameters import MAX_LOGPROBS
from services.router.prompt import check_generates, check_length, check_token_range, output_budget
from services.router.rpc import Prepared, caller_of
from shared.placement import chat_key, named_key, prompt_key

# Maximum number of answers to one request: number of prompts times `n` or `best_of`.
MAX_CHOICES = 1024
DEFAULT_COMPLETION_TOKENS = 16
# Largest `best_of`, the same as in OpenAI's API.
MAX_BEST_OF = 20


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
    ] = Field(
        description="Prompt or prompts: a string, a list of strings, a list of token ids, or a list of such lists."
    )
    max_tokens: int | None = Field(
        None,
        ge=0,
        description=(
            "Maximum number of tokens in the answer. Default: 16. 0 generates nothing, for requests that only "
            "need the prompt's log probabilities."
        ),
    )
    logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_LOGPROBS,
        description=(
            "Number of most likely tokens to return at each position, with the log probability of each token "
            "under the model's raw distribution."
        ),
    )
    echo: bool | None = Field(
        None,
        description=(
            "Whether the text begins with the prompt. With `logprobs`, the prompt's tokens come first, and the "
            "log probability of the first one is null, as in OpenAI's servers and vLLM."
        ),
    )
    best_of: int | None = Field(
        None,
        ge=1,
        le=MAX_BEST_OF,
        description=(
            "Generates `best_of` answers and returns the `n` with the highest log probability per token; "
            "the usage counts all. At least `n`; not with `stream`."
        ),
    )

    def check(self, max_n: int) -> None:
        super().check(max_n)
        if not self.prompt and not isinstance(self.prompt, str):
            raise invalid("Invalid 'prompt': it must not be empty.", "prompt", "empty_array")
        if self.logprob_token_ids and self.logprobs is None:
            raise invalid("Invalid 'logprob_token_ids': it needs 'logprobs'.", "logprob_token_ids")
        self._check_best_of(max_n)
        num_choices = (len(self.texts) + len(self.token_prompts)) * self.num_candidates
        if num_choices > MAX_CHOICES:
            raise invalid(f"Invalid 'prompt': it asks for {num_choices} answers, more than {MAX_CHOICES}.", "prompt")

    def _check_best_of(self, max_n: int) -> None:
        best_of, n = self.best_of, self.n or 1
        if best_of is None or best_of == n:
            return
        if best_of < n:
            message = f"Invalid 'best_of': it must be at least 'n', which is {n}, but got {best_of}."
            raise invalid(message, "best_of", "integer_below_min_value")
        if best_of > max_n:
            message = f"Invalid 'best_of': expected a value <= {max_n}, but got {best_of}."
            raise invalid(message, "best_of", "integer_above_max_value")
        if self.stream:
            message = (
                "'best_of' greater than 'n' is not available when 'stream' is enabled: the best answers are known "
                "only at the end."
            )
            raise invalid(message, "best_of")

    @property
    def num_candidates(self) -> int:
        """Number of answers to generate for each prompt."""
        return self.best_of or self.n or 1

    @property
    def wants_echoed_logprobs(self) -> bool:
        return bool(self.echo) and self.logprobs is not None

    def to_options(self) -> GenerationOptions:
        """Returns the generation options. Raises ApiError."""
        # `best_of` compares answers by their log probabilities, so these are needed even if the request does not ask
        # for them.
        needed = 0 if self.num_candidates > (self.n or 1) else None
        options = self.options(self.max_tokens, needed if self.logprobs is None else self.logprobs)
        sampling = options.sampling
        if self.wants_echoed_logprobs:
            count = max(self.logprobs or 0, self.prompt_logprobs or 0)
            sampling = dataclasses.replace(sampling, prompt_logprobs=count)
        param = "prompt_logprobs" if self.prompt_logprobs is not None else "logprobs"
        return dataclasses.replace(options, sampling=sampling, n=self.num_candidates, prompt_logprobs_param=param)

    @property
    def texts(self) -> list[str]:
        """The prompts if they are texts, else an empty list."""
        given: Any = self.prompt
        if isinstance(given, str):
            return [given]
        return given if isinstance(given[0], str) else []

    @property
    def token_prompts(self) -> list[list[int]]:
        """The prompts if they are token ids, else an empty list."""
        given: Any = self.prompt
        if isinstance(given[:1], str) or isinstance(given[0], str):
            return []
        return [given] if isinstance(given[0], int) else given

    def param(self, index: int) -> str:
        """Returns the path of prompt `index` in the body, for error messages."""
        return "prompt" if isinstance(self.prompt, str) or isinstance(self.prompt[0], int) else f"prompt[{index}]"


@dataclass(frozen=True, slots=True)
class CompletionService:
    generator: Generator
    answers: Answers
    tracing: Tracing

    async def answer(self, body: CompletionRequest, context: Any) -> Prepared:
        """Prepares the answer. Raises ApiError."""
        caller, options = caller_of(context), body.to_options()
        model = await self.generator.placement.models.find(body.model, lambda: _key(body, options))
        with self.tracing.request("text_completion", model.info.name, caller) as span:
            check_generates(model.info)
            prompts = await _encode(body, model)
            max_tokens = tuple(_budget(model, prompt, body.max_tokens) for prompt in prompts)
            request = await options.request(model, caller, span.traceparent, tuple(prompts), max_tokens)
            echoes = await _echoes(body, model, prompts) if body.echo else None
            style = CompletionStyle(
                num_kept=body.n or 1,
                num_candidates=body.num_candidates,
                num_top_logprobs=body.logprobs,
                with_usage=body.include_usage,
                with_token_ids=bool(body.return_token_ids),
                with_prompt_logprobs=body.prompt_logprobs is not None,
                names_tokens_by_id=bool(body.return_tokens_as_token_ids),
                echoes_special_tokens=not body.texts,
            )
            writer = CompletionWriter(AnswerHead.new("cmpl", model), style, prompts, echoes)
            return span.prepared(self.answers.send, request, span, context, writer, stream=bool(body.stream))


def _key(body: CompletionRequest, options: GenerationOptions) -> bytes:
    """Returns the key that decides which version of a model the request gets, by the beginning of its first prompt."""
    name = body.model or ""
    if options.prompt_cache_key:
        return named_key(name, options.prompt_cache_key)
    if body.texts:
        return chat_key(name, options.cache_salt, (("", body.texts[0]),))
    # The ids are checked later, against the model's vocabulary. Here, any number must do.
    token_ids = [token_id & 0xFFFFFFFF for token_id in body.token_prompts[0][:512]]
    return prompt_key(name, options.cache_salt, ids_to_bytes(token_ids))


async def _encode(body: CompletionRequest, model: ServedModel) -> list[list[int]]:
    texts, token_prompts, truncation = body.texts, body.token_prompts, body.truncation

    def check_tokens() -> None:
        for index, token_ids in enumerate(token_prompts):
            check_token_range(model, token_ids, body.param(index))

    await model.tokenizer.threads.run(sum(map(len, token_prompts)), check_tokens)
    if truncation is None:
        for index, text in enumerate(texts):
            check_length(model, text, body.param(index))
        for index, token_ids in enumerate(token_prompts):
            check_length(model, token_ids, body.param(index))
    params = [body.param(index) for index in range(len(texts))]
    encoded = token_prompts or await model.tokenizer.encode(texts, body.add_special_tokens is not False, params)
    if truncation is None:
        return encoded
    max_tokens = DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    return [truncation.apply(prompt, model.info.max_model_len, max_tokens) for prompt in encoded]


async def _echoes(body: CompletionRequest, model: ServedModel, prompts: list[list[int]]) -> list[str]:
    if body.texts and body.truncation is None:
        return body.texts
    # A prompt of token ids is echoed with its special tokens. The echo of a truncated text leaves them out, because the
    # server added them to the text.
    return await model.tokenizer.decode(prompts, skip_special_tokens=bool(body.texts))


def _budget(model: ServedModel, prompt: list[int], max_tokens: int | None) -> int:
    """Returns `max_tokens` for a GenerationRequest. Raises ApiError if prompt and answer do not fit in the context."""
    if max_tokens:
        return output_budget(model.info, len(prompt), max_tokens, ("prompt", "max_tokens"))
    room = output_budget(model.info, len(prompt), None, ("prompt", "max_tokens"))
    return min(DEFAULT_COMPLETION_TOKENS, room) if max_tokens is None else 0
