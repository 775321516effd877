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


class TemplateFields(BaseModel):
    """Mixed into the body, of any use of a conversation."""

    add_generation_prompt: bool | None = Field(None, description="Whether the prompt ends with what begins an answer.")
    continue_final_message: bool | None = Field(None, description="Whether the answer goes on with the last message.")
    chat_template: str | None = Field(
        None,
        description=(
            "Instead of the model's: at most 65,536 characters, rendered in a process "
            "of its own with 2 s of processor time and 64 MiB."
        ),
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="What the template is told besides; it may not replace its own arguments."
    )

    def check_prompt(self) -> None:
        """Raises ApiError."""
        if self.continue_final_message and self.add_generation_prompt:
            message = "'continue_final_message' and 'add_generation_prompt' exclude each other."
            raise invalid(message, "continue_final_message")


class PromptFields(TemplateFields):
    """Mixed into the body, of a conversation that wants an answer."""

    add_generation_prompt: bool | None = Field(
        None, description="Whether the prompt ends with what begins an answer; true unless told otherwise."
    )
    documents: list[dict[str, Any]] | None = Field(
        None, max_length=MAX_DOCUMENTS, description="Objects for the template, at most 1,024."
    )
    tools: list[ToolDefinition] | None = Field(
        None, max_length=MAX_TOOLS, description="Functions that the model may call, at most 128."
    )
    tool_choice: ToolChoiceField | None = Field(
        None, description="`none`, `auto`, `required`, a function, or `allowed_tools`."
    )
    parallel_tool_calls: bool | None = Field(None, description="False: one call at most where calls are forced.")
    reasoning_effort: ReasoningEffort | None = Field(
        None, description="Told to the template; `none` turns thinking off where it can."
    )

    @property
    def adds_generation_prompt(self) -> bool:
        return self.add_generation_prompt is not False and not self.continue_final_message

    @property
    def template_kwargs(self) -> Mapping[str, Any] | None:
        return effort_kwargs(self.reasoning_effort, self.chat_template_kwargs)
