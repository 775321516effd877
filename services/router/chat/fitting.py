"""Renders a plan's prompt. Drops the oldest turns of a conversation that does not fit in the context, if the request
asks for it.

A turn is a user message with everything that follows it, up to the next user message. After the last user message, each
message of the assistant begins a step, to which the results of its calls belong. Dropping begins with the oldest turn.
After the turns before the last user message, the oldest steps are dropped. System messages, the last user message and
the last step always stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from services.router.chat.plan import ChatPlan
from services.router.chat.request import Overflow
from services.router.errors import ApiError, ErrorKind
from services.router.limits import TEXT_TOO_LARGE
from services.router.model import ServedModel
from services.router.prompt import encode_chat

# Roles of the messages that are never dropped.
_INSTRUCTIONS = ("system", "developer")
# Work of reading one message without its text, in the unit of `threads.run` (the work for one character).
_MESSAGE_CHARS = 32


async def encode_plan(plan: ChatPlan, model: ServedModel, *, checks_length: bool = True) -> list[int]:
    """Returns the token ids of the plan's prompt. `checks_length`: whether a text that certainly exceeds the context is
    refused before it is tokenized. Raises ApiError."""
    request = plan.request
    return await encode_chat(
        model,
        plan.messages,
        add_special_tokens=request.add_special_tokens,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        template=plan.template,
        template_kwargs=plan.template_kwargs,
        tools=plan.template_tools,
        documents=request.documents,
        truncation=request.options.truncation,
        max_tokens=request.options.stop.max_tokens,
        checks_length=checks_length,
        param=request.messages_param,
    )


async def fit(plan: ChatPlan, model: ServedModel, *, checks_length: bool = True) -> tuple[ChatPlan, list[int]]:
    """Returns the plan and the token ids of its prompt. If the request's overflow is DROP_OLDEST and the prompt does
    not fit, returns the plan of the conversation without its oldest turns: of as few as possible, or of all that can be
    dropped if even then the prompt does not fit. `checks_length`: as in `encode_plan`, for the prompt that is returned.
    Raises ApiError.

    Finds the number of turns by bisection: dropping some of n turns costs about log2(n) renderings."""
    if plan.request.overflow is Overflow.REFUSE:
        return plan, await encode_plan(plan, model, checks_length=checks_length)
    if (prompt := await _fitting_prompt(plan, model)) is not None:
        return plan, prompt
    messages = plan.request.messages
    size = _MESSAGE_CHARS * len(messages)
    threads = model.tokenizer.threads

    async def shortened(start: int) -> ChatPlan:
        return await threads.run(size, lambda: plan.with_messages(messages_from(messages, start)))

    starts = await threads.run(size, lambda: possible_starts(messages))
    # The conversations that begin before starts[low] do not fit. The one from starts[high] fits and is in `found`, or
    # is the shortest one.
    low, high, found = 0, len(starts) - 1, None
    while low < high:
        middle = (low + high) // 2
        shorter = await shortened(starts[middle])
        if (prompt := await _fitting_prompt(shorter, model)) is None:
            low = middle + 1
        else:
            high, found = middle, (shorter, prompt)
    if found is not None:
        return found
    shortest = await shortened(starts[-1]) if starts else plan
    return shortest, await encode_plan(shortest, model, checks_length=checks_length)


async def _fitting_prompt(plan: ChatPlan, model: ServedModel) -> list[int] | None:
    """Returns the token ids of the plan's prompt; None if they leave too little room for the answer. Raises ApiError,
    but not for a text that is too long."""
    try:
        prompt = await encode_plan(plan, model)
    except ApiError as error:
        if error.kind is ErrorKind.CONTEXT_LENGTH or error.code == TEXT_TOO_LARGE:
            return None
        raise
    max_tokens = None if plan.request.clamps_max_tokens else plan.request.options.stop.max_tokens
    return prompt if len(prompt) + (max_tokens or 1) <= model.info.max_model_len else None


def possible_starts(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Returns the indexes of messages at which a shortened conversation can begin: where turns begin and, after the
    last user message, where steps begin. Ascending; without index 0, at which the whole conversation begins."""
    last_user = _last_user(messages)
    return [
        index
        for index, message in enumerate(messages)
        if index > 0 and (message["role"] == "user" or (message["role"] == "assistant" and index > last_user))
    ]


def messages_from(messages: Sequence[dict[str, Any]], start: int) -> list[dict[str, Any]]:
    """Returns the messages from index `start`, and the messages before them that are never dropped. Leaves out the
    results of dropped calls, because chat templates and clients expect a call before each result."""
    last_user = _last_user(messages)
    kept: list[dict[str, Any]] = []
    made: set[str] = set()
    for index, message in enumerate(messages):
        if index < start and index != last_user and message["role"] not in _INSTRUCTIONS:
            continue
        if message["role"] == "tool" and message["tool_call_id"] not in made:
            continue
        made.update(call["id"] for call in message.get("tool_calls") or ())
        kept.append(message)
    return kept


def _last_user(messages: Sequence[Mapping[str, Any]]) -> int:
    """Returns the index of the last user message; -1 if there is none."""
    return max((index for index, message in enumerate(messages) if message["role"] == "user"), default=-1)
