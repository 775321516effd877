"""A validated chat request. Every chat API converts its requests to this type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from services.router.chat.thinking_budget import ThinkingBudget
from services.router.chat.tools import AS_IT_LIKES, OPENAI_PATH, Tool, ToolChoice, ToolPath
from services.router.generation import GenerationOptions


class Overflow(Enum):
    """What happens to a conversation that does not fit in the model's context: the request is refused, or the oldest
    turns are dropped."""

    REFUSE = auto()
    DROP_OLDEST = auto()


@dataclass(frozen=True, slots=True)
class ChatRequest:
    # None: the only served model.
    model: str | None
    # Messages in OpenAI's JSON form; absent fields are left out. Content is a string, a list of text parts or None.
    messages: list[dict[str, Any]]
    options: GenerationOptions
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = AS_IT_LIKES
    add_special_tokens: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    # A template to use instead of the model's own.
    chat_template: str | None = None
    template_kwargs: Mapping[str, Any] | None = None
    documents: Sequence[Mapping[str, Any]] | None = None
    # None: reasoning has no limit.
    thinking_budget: ThinkingBudget | None = None
    # Names of the API's fields for messages, tools and the output limit, for error messages.
    messages_param: str = "messages"
    tool_path: ToolPath = OPENAI_PATH
    max_tokens_param: str = "max_tokens"
    # Whether an output limit that does not fit into the context is lowered until it fits. Otherwise, the request is
    # refused. APIs differ in this.
    clamps_max_tokens: bool = False
    overflow: Overflow = Overflow.REFUSE
