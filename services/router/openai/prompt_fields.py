"""The fields of bodies with messages that say, besides them, what a chat template writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field

from services.router.chat.thinking import ReasoningEffort, effort_kwargs
from services.router.chat.tools import MAX_TOOLS
from services.router.errors import invalid
from services.router.openai.tools import ToolChoiceField, ToolDefinition
from services.router.prompts import MAX_DOCUMENTS


class PromptFields(BaseModel):
    """Mixed into the body."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = Field(None, max_length=MAX_DOCUMENTS)
    tools: list[ToolDefinition] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: ToolChoiceField | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: ReasoningEffort | None = None

    def check_prompt(self) -> None:
        """Raises ApiError."""
        if self.continue_final_message and self.add_generation_prompt:
            message = "'continue_final_message' and 'add_generation_prompt' exclude each other."
            raise invalid(message, "continue_final_message")

    @property
    def adds_generation_prompt(self) -> bool:
        return self.add_generation_prompt is not False and not self.continue_final_message

    @property
    def template_kwargs(self) -> Mapping[str, Any] | None:
        return effort_kwargs(self.reasoning_effort, self.chat_template_kwargs)
