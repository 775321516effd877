"""Fields that change how the chat template writes the prompt, for all bodies with messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field

from services.router.apis.openai.tools import ToolChoiceField, ToolDefinition
from services.router.chat import MAX_TOOLS, ReasoningEffort, effort_kwargs
from services.router.errors import invalid
from services.router.prompt import MAX_DOCUMENTS


class TemplateFields(BaseModel):
    """Mixin of all bodies with a conversation."""

    add_generation_prompt: bool | None = Field(
        None, description="Whether the chat template adds the beginning of the assistant's turn to the prompt."
    )
    continue_final_message: bool | None = Field(None, description="Whether the answer continues the last message.")
    chat_template: str | None = Field(
        None,
        description=(
            "Chat template to use instead of the model's: at most 65,536 characters. It is rendered in a separate "
            "process with at most 2 s of CPU time and 64 MiB of memory."
        ),
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None,
        description="Additional arguments of the chat template; they cannot replace the template's own arguments.",
    )

    def check_prompt(self) -> None:
        """Raises ApiError if `continue_final_message` and `add_generation_prompt` are both true."""
        if self.continue_final_message and self.add_generation_prompt:
            message = "'continue_final_message' and 'add_generation_prompt' exclude each other."
            raise invalid(message, "continue_final_message")


class PromptFields(TemplateFields):
    """Mixin for bodies that contain a conversation. By default, the prompt ends with the beginning of the assistant's
    turn."""

    add_generation_prompt: bool | None = Field(
        None,
        description=(
            "Whether the chat template adds the beginning of the assistant's turn to the prompt. Default: true."
        ),
    )
    documents: list[dict[str, Any]] | None = Field(
        None, max_length=MAX_DOCUMENTS, description="Documents for the chat template (JSON objects), at most 1,024."
    )
    tools: list[ToolDefinition] | None = Field(
        None, max_length=MAX_TOOLS, description="Functions that the model may call, at most 128."
    )
    tool_choice: ToolChoiceField | None = Field(
        None,
        description=(
            "Whether the model must call tools, and which: `none`, `auto`, `required`, a function, or `allowed_tools`."
        ),
    )
    parallel_tool_calls: bool | None = Field(None, description="If false, at most one call is returned.")
    reasoning_effort: ReasoningEffort | None = Field(
        None,
        description=(
            "Reasoning effort; passed to the chat template. `none` turns reasoning off, and the others turn it on, if "
            "the chat template can."
        ),
    )

    @property
    def adds_generation_prompt(self) -> bool:
        return self.add_generation_prompt is not False and not self.continue_final_message

    @property
    def template_kwargs(self) -> Mapping[str, Any] | None:
        return effort_kwargs(self.reasoning_effort, self.chat_template_kwargs)
