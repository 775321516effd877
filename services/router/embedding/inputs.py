"""Converts the inputs of a request for embeddings, classes or scores to token ids that fit the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.router.errors import ApiError, ErrorKind, invalid
from services.router.model import ServedModel
from services.router.parameters import ClassifierInfo, EmbeddingInfo
from services.router.prompt import check_token_range
from services.router.text import PairTemplate, TokenPair

# Maximum number of inputs in one request, as in OpenAI's API.
MAX_INPUTS = 2048


@dataclass(frozen=True, slots=True)
class InputOptions:
    # Number of tokens to which longer inputs are cut; -1: the model's maximum length. None: inputs that are too long
    # for the model are refused.
    truncate_prompt_tokens: int | None = None
    add_special_tokens: bool = True
    # Whether a longer input loses its beginning, instead of its end. Has no effect on pairs of texts.
    keeps_end: bool = False
    # What the error for an input that is too long advises, besides shortening the input. It uses the API's names of the
    # fields.
    remedy: str = "set 'truncate_prompt_tokens'"
    # The model's prompt in front of each text (see `prompt_for`); empty: none. Its tokens count like those of the text.
    prefix: str = ""

    def max_tokens(self, model: ServedModel) -> int | None:
        """Returns the number of tokens to which inputs are cut; None: inputs are not cut. Raises ApiError if
        `truncate_prompt_tokens` is out of range."""
        given, limit = self.truncate_prompt_tokens, model.info.max_model_len
        if given is None or given == -1:
            return given and limit
        if not 1 <= given <= limit:
            message = f"Invalid 'truncate_prompt_tokens': expected a value from 1 to {limit}, or -1, but got {given}."
            raise invalid(message, "truncate_prompt_tokens")
        return given


def embedding_of(model: ServedModel) -> EmbeddingInfo:
    """Returns the model's embedding sizes. Raises ApiError if the model has no embeddings."""
    if model.info.embedding is None:
        kind = "" if model.info.classifier is None else " It is a classifier: use /classify."
        raise invalid(f"The model `{model.info.name}` does not support embeddings.{kind}", "model")
    return model.info.embedding


def classifier_of(model: ServedModel) -> ClassifierInfo:
    """Returns the model's labels. Raises ApiError if the model is not a classifier."""
    if model.info.classifier is None:
        raise invalid(f"The model `{model.info.name}` is not a classifier.", "model")
    return model.info.classifier


async def encode_texts(
    model: ServedModel, texts: Sequence[str], params: Sequence[str], options: InputOptions
) -> list[list[int]]:
    """Returns the token ids of the texts, each with `options.prefix` in front. `params`: the texts' names in errors. If
    a text certainly exceeds the context, raises ApiError without tokenizing it."""
    max_tokens, tokenizer, prefix = options.max_tokens(model), model.tokenizer, options.prefix
    if max_tokens is not None:
        prompts = await tokenizer.encode_cut(
            texts,
            options.add_special_tokens,
            max_tokens,
            keeps_end=options.keeps_end,
            params=params,
            prefix=prefix,
        )
    else:
        _check_least(model, texts, params, options)
        prompts = await tokenizer.encode(texts, options.add_special_tokens, params, prefix=prefix)
    return _check_lengths(model, prompts, params, options)


async def encode_pairs(
    model: ServedModel,
    texts: tuple[Sequence[str], Sequence[str]],
    params: tuple[Sequence[str], Sequence[str]],
    options: InputOptions,
) -> tuple[PairTemplate, list[TokenPair]]:
    """Returns the tokens of each pair of texts, and how they become one sequence. `texts`: the first texts of all
    pairs, or one for all of them, and the second texts. `params`: the texts' names in errors. Raises ApiError for a
    pair that is too long and may not be cut."""
    tokenizer, limit, max_tokens = model.tokenizer, model.info.max_model_len, options.max_tokens(model)
    template = tokenizer.pair_template(add_special_tokens=options.add_special_tokens)
    num_special = template.num_special
    if max_tokens is None:
        for some, names in zip(texts, params, strict=True):
            _check_least(model, some, names, options)
    firsts, seconds = [
        await tokenizer.encode_parts(some, max_tokens, names) for some, names in zip(texts, params, strict=True)
    ]
    if max_tokens is None:
        for first, param in zip(firsts, params[0], strict=True):
            if first.num_tokens + num_special > limit:
                raise _too_long(model, str(first.num_tokens + num_special), param, options)
    room = None if max_tokens is None else max(0, max_tokens - num_special)
    copies = len(seconds) if len(firsts) == 1 else 1
    pairs: list[TokenPair] = []
    for first, other, second, param in zip(firsts * copies, [*params[0]] * copies, seconds, params[1], strict=True):
        pair = TokenPair.of(first, second, room)
        length = template.num_tokens(pair)
        if not length:
            raise invalid(f"Invalid '{param}': it has no tokens.", param)
        if max_tokens is None and length > limit:
            raise _too_long(model, f"{length} together with '{other}'", param, options)
        pairs.append(pair)
    return template, pairs


def check_token_inputs(
    model: ServedModel, inputs: Sequence[list[int]], params: Sequence[str], options: InputOptions
) -> list[list[int]]:
    """Returns the inputs, cut as the options require. Raises ApiError if an id is unknown, or if an input is too
    long."""
    max_tokens = options.max_tokens(model)
    # `max_tokens` is at least 1.
    kept = slice(-max_tokens, None) if max_tokens is not None and options.keeps_end else slice(max_tokens)
    cut = [token_ids[kept] for token_ids in inputs]
    _check_lengths(model, cut, params, options)
    for token_ids, param in zip(cut, params, strict=True):
        check_token_range(model, token_ids, param)
    return cut


def _check_least(model: ServedModel, texts: Sequence[str], params: Sequence[str], options: InputOptions) -> None:
    """Raises ApiError if a text certainly exceeds the context."""
    for text, param in zip(texts, params, strict=True):
        least = (len(options.prefix) + len(text)) // model.tokenizer.max_token_chars
        if least > model.info.max_model_len:
            raise _too_long(model, f"at least {least}", param, options)


def _check_lengths(
    model: ServedModel, prompts: list[list[int]], params: Sequence[str], options: InputOptions
) -> list[list[int]]:
    for prompt, param in zip(prompts, params, strict=True):
        if not prompt:
            raise invalid(f"Invalid '{param}': it has no tokens.", param)
        if len(prompt) > model.info.max_model_len:
            raise _too_long(model, str(len(prompt)), param, options)
    return prompts


def _too_long(model: ServedModel, count: str, param: str, options: InputOptions) -> ApiError:
    if options.prefix:
        count += " with the model's prompt in front"
    return ApiError(
        ErrorKind.CONTEXT_LENGTH,
        f"This model's maximum context length is {model.info.max_model_len} tokens. However, '{param}' has {count}. "
        f"Please shorten it, or {options.remedy}.",
        param,
    )
