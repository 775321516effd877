"""Conversion of Anthropic's turns to messages for chat templates."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, ClassVar, Literal

from pydantic import Field

from services.router.apis.anthropic.blocks import (
    Block,
    OtherBlock,
    StringOrBlocks,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    not_supported,
)
from services.router.chat import check_call_made, thought
from services.router.http import Body


class Turn(Body):
    not_built: ClassVar[Mapping[str, tuple[object, ...]]] = {"output_config": ({},)}

    role: Literal["user", "assistant", "system"] = Field(description="Role of the author.")
    content: StringOrBlocks = Field(description="A text, or a list of blocks.")
    clear_at: Literal["next_user_message", "never"] | None = Field(
        None, description="For a system message: whether the model stops seeing it after the user's next message."
    )

    def to_template(self, param: str, made: set[str], *, shows_thinking: bool = True) -> list[dict[str, Any]]:
        """Converts the turn to messages. `param`: path of the turn in the request, for error messages. `made`: ids of
        the tool calls in earlier turns; the method adds the ids of this turn's calls. Raises ApiError."""
        if isinstance(self.content, str):
            return [{"role": self.role, "content": self.content}]
        if self.role == "assistant":
            made.update(block.id for block in self.content if isinstance(block, ToolUseBlock))
            return [_assistant(self.content, f"{param}.content", shows_thinking=shows_thinking)]
        return _others(self.role, self.content, f"{param}.content", made)


def shown_turns(turns: Sequence[Turn]) -> Iterator[tuple[int, Turn]]:
    """Yields the turns that the model sees, with their indices. Leaves out a system message if `clear_at` limits it to
    the user's next message and the user has written since."""
    last_user = max((index for index, turn in enumerate(turns) if turn.role == "user"), default=-1)
    for index, turn in enumerate(turns):
        if turn.role != "system" or turn.clear_at != "next_user_message" or index > last_user:
            yield index, turn


def _assistant(blocks: Sequence[Block], param: str, *, shows_thinking: bool) -> dict[str, Any]:
    texts, thoughts, calls = [], [], []
    for index, block in enumerate(blocks):
        match block:
            case TextBlock():
                texts.append(block.text)
            case ThinkingBlock():
                thoughts.append(block.thinking)
            case ToolUseBlock():
                function = {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)}
                calls.append({"id": block.id, "type": "function", "function": function})
            case OtherBlock(type="redacted_thinking"):
                # Reasoning that Anthropic encrypted is ignored: only Anthropic can decrypt it.
                pass
            case _:
                raise not_supported(block.type, f"{param}[{index}]")
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts and shows_thinking:
        thought(message, "\n".join(thoughts))
    if calls:
        message["tool_calls"] = calls
    return message


def _others(role: str, blocks: Sequence[Block], param: str, made: Set[str]) -> list[dict[str, Any]]:
    """Converts a turn of the user or the system. Each tool result becomes a message. The texts before, between and
    after the results become messages, too; the order stays the same."""
    messages: list[dict[str, Any]] = []
    texts: list[str] = []

    def end_texts() -> None:
        if texts:
            messages.append({"role": role, "content": "\n".join(texts)})
            texts.clear()

    for index, block in enumerate(blocks):
        match block:
            case TextBlock():
                texts.append(block.text)
            case ToolResultBlock() if role == "user":
                end_texts()
                content = block.text(f"{param}[{index}].content")
                check_call_made(block.tool_use_id, made, f"{param}[{index}].tool_use_id")
                messages.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": content})
            case _:
                raise not_supported(block.type, f"{param}[{index}]")
    end_texts()
    return messages or [{"role": role, "content": ""}]
