"""Turns a chat request into a generation request and the parsers of its answers. All chat APIs use it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from services.router.chat.fitting import fit
from services.router.chat.forms import FormChoice
from services.router.chat.message import MessageParser, PlainParser
from services.router.chat.plan import plan_chat
from services.router.chat.request import ChatRequest
from services.router.chat.text_parser import TextParser
from services.router.chat.tool_faults import names_tool
from services.router.chat.tools import ToolMode
from services.router.errors import ApiError
from services.router.generation import GenerationRequest, ResolveConstraints, Usage
from services.router.model import ServedModel
from services.router.prompt import check_generates, output_budget
from services.router.rpc import Caller
from services.router.template import text_of
from shared.placement import chat_key, named_key


async def prepare(
    request: ChatRequest,
    model: ServedModel,
    caller: Caller,
    traceparent: str,
    forms: FormChoice,
    resolve: ResolveConstraints | None = None,
) -> tuple[GenerationRequest, list[MessageParser]]:
    """Returns the generation request and one parser per choice. `resolve`: as in GenerationOptions.request. Raises
    ApiError."""
    check_generates(model.info)
    whole = await plan_chat(request, model, forms)
    plan, prompt = await fit(whole, model)
    text_plan = await plan.text_plan(model, prompt, request.options.skip_special_tokens)
    message_plan, vocabulary = text_plan.messages, model.tokenizer.vocabulary
    budget = request.thinking_budget
    options = dataclasses.replace(
        request.options,
        structure=plan.structure,
        around_structure=plan.around_structure(message_plan, model),
        thinking=None if budget is None else budget.limit(plan.forms.messages, message_plan, vocabulary),
    )
    params = (request.messages_param, request.max_tokens_param)
    max_tokens = output_budget(
        model.info, len(prompt), options.stop.max_tokens, params, clamps=request.clamps_max_tokens
    )
    # Dropped turns count, because the key must stay the same when later requests of the chat drop more turns.
    turns = ((message["role"], text_of(message)) for message in whole.messages)
    affinity = chat_key(model.info.name, options.cache_salt, turns)
    try:
        generation_request = await options.request(
            model, caller, traceparent, (prompt,), (max_tokens,), affinity, resolve
        )
    except ApiError as error:
        # With tool choice `auto`, plan_chat has checked the schemas of all tools that have an effect.
        if request.tool_choice.mode is ToolMode.AUTO:
            raise
        raise await names_tool(error, request, request.tools, model.tokenizer.threads) from None
    if message_plan.is_plain:
        return generation_request, [PlainParser() for _ in range(options.n)]
    visible = vocabulary.special_ids(text_plan.hidden_tokens)
    return (
        dataclasses.replace(generation_request, visible_token_ids=visible),
        [TextParser(text_plan) for _ in range(options.n)],
    )


def conversation_key(request: ChatRequest) -> bytes:
    """Returns the key that decides which version of a model a chat gets. It is the same for all turns of the chat."""
    name, options = request.model or "", request.options
    if options.prompt_cache_key:
        return named_key(name, options.prompt_cache_key)
    turns = ((str(message.get("role")), text_of(message)) for message in request.messages)
    return chat_key(name, options.cache_salt, turns)


def with_reasoning(usage: Usage, parsers: Sequence[MessageParser]) -> Usage:
    """Returns the usage with the number of reasoning tokens that the parsers counted."""
    return dataclasses.replace(usage, reasoning_tokens=sum(parser.num_reasoning_tokens for parser in parsers))
