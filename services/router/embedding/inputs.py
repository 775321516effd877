"""Converts the inputs of an embedding request to token ids that fit the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.router.errors import ApiError, ErrorKind, invalid
from services.router.model import ServedModel
from services.router.parameters import ClassificationParams, ClassifierInfo, EmbeddingInfo
from services.router.prompt import check_token_range

# Maximum number of inputs in one request, as in OpenAI's API.
MAX_INPUTS = 2048


@dataclass(frozen=True, slots=True)
class InputOptions:
    # Number of tokens to which longer inputs are cut; -1: the model's maximum length. None: inputs that are too long
    # for the model are refused.
    truncate_prompt_tokens: int | None = None
    add_special_tokens: bool = True
    # What the error for an input that is too long advises, besides shortening the input. It uses the API's names of the
    # fields.
    remedy: str = "set 'truncate_prompt_tokens'"

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
    """Returns the texts' token ids. `params`: the texts' names in errors. If a text certainly exceeds the context,
    raises ApiError without tokenizing it."""
    max_tokens, tokenizer = options.max_tokens(model), model.tokenizer
    if max_tokens is not None:
        prompts = await tokenizer.encode_cut(texts, options.add_special_tokens, max_tokens, params=params)
    else:
        _check_least(model, texts, params, options)
        prompts = await tokenizer.encode(texts, options.add_special_tokens, params)
    return _check_lengths(model, prompts, params, options)


async def encode_pairs(
    model: ServedModel,
    texts: tuple[Sequence[str], Sequence[str]],
    params: tuple[Sequence[str], Sequence[str]],
    options: InputOptions,
) -> tuple[list[list[int]], list[int | None]]:
    """Returns the token ids of each pair of texts, and the index of the second text's first token if the tokenizer
    tells texts apart. `texts`: the first texts of all pairs, or one for all of them, and the second texts. `params`:
    the texts' names in errors. Raises ApiError for a pair that is too long and may not be cut."""
    tokenizer, (firsts, seconds) = model.tokenizer, texts
    max_tokens, adds_special = options.max_tokens(model), options.add_special_tokens
    if max_tokens is None:
        for some, names in zip(texts, params, strict=True):
            _check_least(model, some, names, options)
    parts = [await tokenizer.encode_parts(some, names) for some, names in zip(texts, params, strict=True)]
    ones, others = parts[0] * (len(seconds) if len(firsts) == 1 else 1), parts[1]
    num_special = tokenizer.num_special_tokens(is_pair=True) if adds_special else 0
    if max_tokens is None:
        for one, param in zip(parts[0], params[0], strict=True):
            if len(one) + num_special > model.info.max_model_len:
                raise _too_long(model, str(len(one) + num_special), param, options)
    lengths = [len(one) + len(other) + num_special for one, other in zip(ones, others, strict=True)]
    for length, param in zip(lengths, params[1], strict=True):
        if not length:
            raise invalid(f"Invalid '{param}': it has no tokens.", param)
        if max_tokens is None and length > model.info.max_model_len:
            count = f"{length} together with '{params[0][0]}'" if len(firsts) == 1 else f"{length} with its first text"
            raise _too_long(model, count, param, options)
    work = sum(min(length, model.info.max_model_len) for length in lengths)
    return await tokenizer.threads.run(
        work, lambda: tokenizer.join_pairs(list(zip(ones, others, strict=True)), adds_special, max_tokens)
    )


def pair_params(starts: Sequence[int | None], *, activates: bool) -> list[ClassificationParams]:
    """Returns the parameters of each pair. `starts`: from `encode_pairs`."""
    return [ClassificationParams(start, activates) for start in starts]


def check_token_inputs(
    model: ServedModel, inputs: Sequence[list[int]], params: Sequence[str], options: InputOptions
) -> list[list[int]]:
    """Returns the inputs, cut as the options require. Raises ApiError if an id is unknown, or if an input is too
    long."""
    max_tokens = options.max_tokens(model)
    cut = [token_ids[:max_tokens] for token_ids in inputs]
    _check_lengths(model, cut, params, options)
    for token_ids, param in zip(cut, params, strict=True):
        check_token_range(model, token_ids, param)
    return cut


def _check_least(model: ServedModel, texts: Sequence[str], params: Sequence[str], options: InputOptions) -> None:
    """Raises ApiError if a text certainly exceeds the context."""
    for text, param in zip(texts, params, strict=True):
        least = len(text) // model.tokenizer.max_token_chars
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
    return ApiError(
        ErrorKind.CONTEXT_LENGTH,
        f"This model's maximum context length is {model.info.max_model_len} tokens. However, '{param}' has {count}. "
        f"Please shorten it, or {options.remedy}.",
        param,
    )
