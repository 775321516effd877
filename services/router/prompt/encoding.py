"""Converts a request's text or messages to token ids that fit the model. All APIs use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from services.router.errors import invalid
from services.router.limits import check_json_texts
from services.router.model import ServedModel
from services.router.parameters import Truncation
from services.router.prompt.context_length import context_length_exceeded
from services.router.prompt.prompt_template import PromptTemplate
from services.router.template import no_chat_template, num_forms, text_of

# Maximum number of messages. More are probably a mistake, and would take seconds to render.
MAX_MESSAGES = 10_000
MAX_DOCUMENTS = 1024
# Maximum number of tool calls in one message.
MAX_CALLS = 128
# Cost of rendering a message besides its text. The unit is the cost of rendering one character of text.
_MESSAGE_CHARS = 32
# Cost of rendering a tool or a document, in the same unit: large enough that rendering even one runs on a thread.
_TOOL_CHARS = 4096
# Maximum size of the text of the tokens of one Detokenize request, in UTF-8.
MAX_DETOKENIZED_BYTES = 8 * 2**20
# Cost of an argument of the template, in the same unit. One with more values counts like a tool, because a template may
# loop over it.
_ARGUMENT_CHARS = 16


async def encode_text(model: ServedModel, text: str, param: str, *, add_special_tokens: bool = True) -> list[int]:
    """Returns the text's token ids. If the text certainly exceeds the context, raises ApiError without
    tokenizing it."""
    check_length(model, text, param)
    (token_ids,) = await model.tokenizer.encode([text], add_special_tokens, [param])
    return token_ids


def check_length(model: ServedModel, prompt: str | Sequence[int], param: str) -> None:
    """Raises ApiError if the prompt certainly exceeds the context. A text certainly does so if it would have too many
    tokens even if all of them had the maximum length."""
    is_text = isinstance(prompt, str)
    least = len(prompt) // model.tokenizer.max_token_chars if is_text else len(prompt)
    if least > model.info.max_model_len:
        raise context_length_exceeded(model.info, f"your prompt has at least {least} tokens", param)


async def encode_chat(
    model: ServedModel,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_special_tokens: bool = False,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    template: PromptTemplate | None,
    template_kwargs: Mapping[str, Any] | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    truncation: Truncation | None = None,
    max_tokens: int | None = None,
    checks_length: bool = True,
    param: str = "messages",
) -> list[int]:
    """Renders the messages and returns the token ids. Adds no special tokens by default, because templates write them.
    `template`: None if the model has none. `tools`, `documents`: as in ChatTemplate.render. `max_tokens`: number of
    tokens that a truncation leaves free for the answer. `checks_length`: whether a text that certainly exceeds the
    context is refused before it is tokenized. `param`: name, in errors, of the field with the messages. Raises
    ApiError."""
    size = sum(map(_message_chars, messages))
    arguments: dict[str, Any] = {
        "messages": messages,
        "tools": tools,
        "documents": documents,
        "add_generation_prompt": add_generation_prompt,
        "continue_final_message": continue_final_message,
        "template_kwargs": template_kwargs,
    }
    # Templates get the arguments of tool calls as parsed JSON.
    await check_call_arguments(model, messages, param)
    if template is None:
        raise no_chat_template(model.info.name)
    size += _TOOL_CHARS * (len(tools or ()) + len(documents or ())) + _arguments_chars(template_kwargs or {})
    text = await template.render(size * num_forms(messages), arguments)
    if truncation is None and checks_length:
        return await encode_text(model, text, param, add_special_tokens=add_special_tokens)
    (token_ids,) = await model.tokenizer.encode([text], add_special_tokens, [param])
    return token_ids if truncation is None else truncation.apply(token_ids, model.info.max_model_len, max_tokens)


async def check_call_arguments(model: ServedModel, messages: Sequence[Mapping[str, Any]], param: str) -> int:
    """Returns the number of characters of the arguments of all tool calls. Raises ApiError, which names `param`, if
    they have more values than a request's body may have."""
    calls = [(param, call["function"]["arguments"]) for message in messages for call in message.get("tool_calls") or ()]
    size = sum(len(text) for _, text in calls)
    if calls:
        await model.tokenizer.threads.run(size, lambda: check_json_texts(calls))
    return size


def _arguments_chars(arguments: Mapping[str, Any]) -> int:
    return sum(_TOOL_CHARS if isinstance(value, (list, dict)) else _ARGUMENT_CHARS for value in arguments.values())


def _message_chars(message: Mapping[str, Any]) -> int:
    arguments = sum(len(call["function"]["arguments"]) for call in message.get("tool_calls") or ())
    return _MESSAGE_CHARS + len(text_of(message)) + len(message.get("reasoning") or "") + arguments


def check_token_range(model: ServedModel, token_ids: Sequence[int], param: str) -> None:
    """Raises ApiError if an id is outside the model's vocabulary."""
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < model.info.vocab_size):
        position, token_id = next(
            (position, token_id)
            for position, token_id in enumerate(token_ids)
            if not 0 <= token_id < model.info.vocab_size
        )
        raise invalid(
            f"Invalid '{param}[{position}]': token id {token_id} is out of range; the model has "
            f"{model.info.vocab_size} tokens.",
            f"{param}[{position}]",
            "token_id_out_of_range",
        )


def check_detokenized(model: ServedModel, token_ids: Sequence[int], param: str) -> None:
    """Raises ApiError if an id is outside the model's vocabulary, or if the text of all tokens would be too long: one
    token can be 128 spaces."""
    check_token_range(model, token_ids, param)
    size = sum(map(len, map(model.tokenizer.vocabulary.token_bytes, token_ids)))
    if size > MAX_DETOKENIZED_BYTES:
        raise invalid(
            f"Invalid '{param}': their text has {size} bytes; at most {MAX_DETOKENIZED_BYTES} are allowed.",
            param,
            "array_above_max_length",
        )
