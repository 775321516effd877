"""The content blocks of messages. Blocks that are not text, reasoning, tool calls or tool results are refused with an
error that names their type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from services.router.errors import ApiError, ErrorKind
from services.router.http import Body, string_or_array, union


class TextBlock(Body):
    known_extras = frozenset({"cache_control", "citations"})

    type: Literal["text"] = Field(description="The type of a text block.")
    text: str = Field(description="The text.")


class ThinkingBlock(Body):
    known_extras = frozenset({"signature"})

    type: Literal["thinking"] = Field(description="The type of a block with the assistant's reasoning.")
    thinking: str = Field(description="The text of the reasoning.")


class ToolUseBlock(Body):
    known_extras = frozenset({"cache_control", "caller", "toolset_name"})

    type: Literal["tool_use"] = Field(description="The type of a block with a tool call.")
    id: str = Field(description="Id of the call, to which its result refers.")
    name: str = Field(description="Name of the function.")
    input: dict[str, Any] = Field(description="Arguments of the call.")


class OtherBlock(Body):
    """A block of a type that is not supported at this place. It is refused, except for encrypted reasoning in a message
    of the assistant, which is ignored."""

    known_extras = frozenset({"data"})

    type: str = Field(description="Refused, except `redacted_thinking`, which is ignored.")


def _tag(*known: str) -> Any:
    def tag(value: object) -> str | None:
        kind = value.get("type") if isinstance(value, dict) else None
        return (f"#{kind}" if kind in known else "#other") if isinstance(kind, str) else None

    return union(tag, "an object with a 'type'")


StringOrTexts = Annotated[
    Annotated[str, Tag("#string")]
    | Annotated[
        list[Annotated[Annotated[TextBlock, Tag("#text")] | Annotated[OtherBlock, Tag("#other")], _tag("text")]],
        Tag("#array"),
    ],
    union(string_or_array, "a string or an array of text blocks"),
]


class ToolResultBlock(Body):
    known_extras = frozenset({"cache_control", "toolset_name"})

    type: Literal["tool_result"] = Field(description="The type of a block with the result of a tool call.")
    tool_use_id: str = Field(description="Id of the call that this is the result of.")
    content: StringOrTexts | None = Field(None, description="A text or text blocks.")
    is_error: bool | None = Field(
        None,
        description=(
            "True if the call failed. The model then sees the text with `Error: ` in front, unless it begins so "
            "already."
        ),
    )

    def text(self, param: str) -> str:
        """Returns the result as text. `param`: path of `content` in the request, for error messages. Raises ApiError if
        a block is not text."""
        text = text_of(self.content, param)
        # Chat templates cannot mark a result as an error, so the text has to say that the call failed.
        return f"Error: {text}" if self.is_error and not text.lower().startswith("error") else text


Block = Annotated[
    Annotated[TextBlock, Tag("#text")]
    | Annotated[ThinkingBlock, Tag("#thinking")]
    | Annotated[ToolUseBlock, Tag("#tool_use")]
    | Annotated[ToolResultBlock, Tag("#tool_result")]
    | Annotated[OtherBlock, Tag("#other")],
    _tag("text", "thinking", "tool_use", "tool_result"),
]
StringOrBlocks = Annotated[
    Annotated[str, Tag("#string")] | Annotated[list[Block], Tag("#array")],
    union(string_or_array, "a string or an array of blocks"),
]


def text_of(content: str | Sequence[TextBlock | OtherBlock] | None, param: str) -> str:
    """Returns the content as one text, with a newline between blocks. `param`: path of `content` in the request, for
    error messages. Raises ApiError if a block is not text."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for index, block in enumerate(content):
        if not isinstance(block, TextBlock):
            raise not_supported(block.type, f"{param}[{index}]")
        texts.append(block.text)
    return "\n".join(texts)


def not_supported(kind: str, param: str) -> ApiError:
    message = f"Invalid '{param}.type': blocks of type '{kind[:64]}' are not supported here by this server."
    return ApiError(ErrorKind.UNSUPPORTED, message, f"{param}.type")
