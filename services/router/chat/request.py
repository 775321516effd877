"""A conversation that wants an answer, checked: what every chat API is translated to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.router.chat.thinking_budget import ThinkingBudget
from services.router.chat.tools import AS_IT_LIKES, OPENAI_PATH, Tool, ToolChoice, ToolPath
from services.router.generation import GenerationOptions


@dataclass(frozen=True, slots=True)
class ChatRequest:
    # None: the one that is served.
    model: str | None
    # As OpenAI's JSON has them, absent fields absent; content is a string, a list of text parts or None.
    messages: list[dict[str, Any]]
    options: GenerationOptions
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = AS_IT_LIKES
    add_special_tokens: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    # Instead of the model's own.
    chat_template: str | None = None
    template_kwargs: Mapping[str, Any] | None = None
    documents: Sequence[Mapping[str, Any]] | None = None
    # None: no limit of the reasoning.
    thinking_budget: ThinkingBudget | None = None
    # What the API calls its messages, its tools and its limit of new tokens, in errors.
    messages_param: str = "messages"
    tool_path: ToolPath = OPENAI_PATH
    max_tokens_param: str = "max_tokens"
    # Whether a limit beyond the context means the context's, as the API has it, and not an error.
    clamps_max_tokens: bool = False
