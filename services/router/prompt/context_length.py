"""Checks that prompt and answer fit the model's context."""

from __future__ import annotations

from services.router.errors import ApiError, ErrorKind, invalid
from services.router.model import ModelInfo


def output_budget(
    info: ModelInfo, num_prompt_tokens: int, max_tokens: int | None, params: tuple[str, str], *, clamps: bool = False
) -> int:
    """Returns the maximum number of output tokens to submit to the scheduler. `max_tokens`: the client's limit.
    `params`: the names of the request's fields for the prompt and for this limit, for errors. Raises ApiError if the
    prompt is empty or leaves no room in the context, or if `max_tokens` exceeds the room and `clamps` is False. If
    `clamps` is True, a `max_tokens` that exceeds the room is reduced to the room."""
    prompt_param, max_tokens_param = params
    if num_prompt_tokens == 0:
        raise invalid(f"Invalid '{prompt_param}': it has no tokens.", prompt_param)
    room = info.max_model_len - num_prompt_tokens
    if room < 1:
        raise context_length_exceeded(info, f"your prompt has {num_prompt_tokens} tokens", prompt_param)
    if max_tokens is None or (clamps and max_tokens > room):
        return room
    if max_tokens > room:
        raise ApiError(
            ErrorKind.CONTEXT_LENGTH,
            f"'{max_tokens_param}' is too large: {max_tokens}. This model's maximum context length is "
            f"{info.max_model_len} tokens and your prompt has {num_prompt_tokens}, which leaves {room} for the answer.",
            max_tokens_param,
        )
    return max_tokens


def context_length_exceeded(info: ModelInfo, however: str, param: str) -> ApiError:
    return ApiError(
        ErrorKind.CONTEXT_LENGTH,
        f"This model's maximum context length is {info.max_model_len} tokens. However, {however}, which leaves no room "
        f"for an answer. Please shorten '{param}'.",
        param,
    )


def check_generates(info: ModelInfo) -> None:
    """Raises ApiError for a model that only serves embeddings or classes."""
    if "generate" in info.tasks:
        return
    kind = "an encoder" if info.is_encoder else "a decoder without output layer"
    serves = "embeddings"
    if info.classifier is not None:
        kind, serves = "a classifier", "classes and scores"
    raise invalid(f"The model `{info.name}` is {kind}: it serves {serves} and cannot generate text.", "model")
