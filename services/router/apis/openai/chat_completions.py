"""The body of /v1/chat/completions, and its conversion to a ChatRequest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, Tag

from services.router.apis.openai.body import GenerationBody
from services.router.apis.openai.chat_writer import ChatStyle
from services.router.apis.openai.functions import FUNCTIONS_PATH, FunctionFields, FunctionName, with_tool_messages
from services.router.apis.openai.prompt_fields import PromptFields
from services.router.apis.openai.tools import FunctionCall, NamedTool, ToolCall, tools_and_choice
from services.router.chat import OPENAI_PATH, ChatRequest, ThinkingBudget, check_tool_messages
from services.router.errors import ApiError, ErrorKind, invalid
from services.router.http import Body, string_or_array, union
from services.router.parameters import MAX_LOGPROBS
from services.router.prompt import MAX_CALLS, MAX_MESSAGES


class TextPart(Body):
    known_extras = frozenset({"prompt_cache_breakpoint", "cache_control", "annotations", "logprobs"})

    type: Literal["text", "input_text", "output_text"] = Field(
        description="The type of a text part; all three mean the same."
    )
    text: str = Field(description="The text.")


class RefusalPart(Body):
    """An earlier refusal of the assistant."""

    type: Literal["refusal"] = Field(description="The type of a refusal.")
    refusal: str = Field(description="The text.")


class ThinkingPart(Body):
    """Reasoning of the assistant as a content part, as in Mistral's API and LiteLLM."""

    known_extras = frozenset({"signature", "closed"})

    type: Literal["thinking"] = Field(description="The type of a part with the assistant's reasoning.")
    thinking: Annotated[
        Annotated[str, Tag("#string")] | Annotated[list[TextPart], Tag("#array")],
        union(string_or_array, "a string or an array of text parts"),
    ] = Field(description="A text, or a list of text parts.")

    @property
    def text(self) -> str:
        thinking: str | list[TextPart] = self.thinking
        return thinking if isinstance(thinking, str) else "".join(part.text for part in thinking)


class OtherPart(Body):
    """A part that is not text. It is refused with an error that names its type."""

    type: Literal[
        "image_url", "input_image", "image", "input_audio", "audio_url", "video_url", "file", "image_embeds"
    ] = Field(description="Not supported.")


def _part_kind(value: object) -> str | None:
    """Returns the tag of the union member that a part is validated as. A part whose `type` is missing or unknown is
    validated as a text part, so that the error names its `type`."""
    if not isinstance(value, dict):
        return None
    kind = value.get("type")
    if kind in ("refusal", "thinking"):
        return f"#{kind}"
    return "#other" if kind in get_args(_OTHER_TYPES) else "#text"


_OTHER_TYPES = OtherPart.model_fields["type"].annotation
Part = Annotated[
    Annotated[TextPart, Tag("#text")]
    | Annotated[RefusalPart, Tag("#refusal")]
    | Annotated[ThinkingPart, Tag("#thinking")]
    | Annotated[OtherPart, Tag("#other")],
    union(_part_kind, "an object with a type"),
]


class ChatMessage(Body):
    # OpenAI's answers have this field. Clients keep it when they send an answer back as an earlier message.
    known_extras = frozenset({"annotations"})
    not_built: ClassVar[Mapping[str, tuple[object, ...]]] = {"audio": ()}

    role: str = Field(
        min_length=1,
        max_length=64,
        description=(
            "`system`, `developer`, `user`, `assistant` or `tool`. Other roles are passed to the chat template, "
            "which may refuse them."
        ),
    )
    content: (
        Annotated[
            Annotated[str, Tag("#string")] | Annotated[list[Part], Tag("#array")],
            union(string_or_array, "a string or an array of text parts"),
        ]
        | None
    ) = Field(None, description="A text, or a list of text parts.")
    refusal: str | None = Field(None, description="The assistant's refusal; treated as its text.")
    name: str | None = Field(None, description="Name of the author, for chat templates that show it.")
    tool_call_id: str | None = Field(None, description="For a tool message: id of the call that it is the result of.")
    tool_calls: list[ToolCall] | None = Field(None, max_length=MAX_CALLS, description="Tool calls of the assistant.")
    function_call: FunctionCall | None = Field(None, description="Older form of `tool_calls`.")
    # Two names for the model's reasoning in earlier turns: DeepSeek's, which most servers use, and vLLM's newer one.
    reasoning_content: str | None = Field(None, description="Reasoning of the assistant.")
    reasoning: str | None = Field(None, description="vLLM's newer name of `reasoning_content`.")

    def to_template(self) -> dict[str, Any]:
        """Returns the message as chat templates expect it: refusals become text, and unset fields are absent."""
        content: Any = self.content
        reasoning = self.reasoning_content or self.reasoning
        if isinstance(content, list):
            thoughts = [part.text for part in content if isinstance(part, ThinkingPart)]
            reasoning = reasoning or "\n".join(thoughts)
            content = [
                {"type": "text", "text": _text_of(part)} for part in content if not isinstance(part, ThinkingPart)
            ]
            if self.refusal:
                content.append({"type": "text", "text": self.refusal})
        else:
            # Templates would print None as text, so missing content becomes an empty text.
            content = "\n".join(filter(None, (content, self.refusal)))
        message: dict[str, Any] = {"role": self.role, "content": content}
        if self.name is not None:
            message["name"] = self.name
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        if self.tool_calls:
            message["tool_calls"] = [call.to_template() for call in self.tool_calls]
        if self.function_call is not None:
            function = {"name": self.function_call.name, "arguments": self.function_call.arguments or "{}"}
            message["function_call"] = function
        if reasoning:
            message["reasoning_content"] = message["reasoning"] = reasoning
        return message


def _budget(num_tokens: int | None) -> ThinkingBudget | None:
    return None if num_tokens is None or num_tokens < 0 else ThinkingBudget(num_tokens)


def _text_of(part: Any) -> str:
    text: str = part.refusal if isinstance(part, RefusalPart) else part.text
    return text


class ChatCompletionRequest(GenerationBody, PromptFields, FunctionFields):
    messages: list[ChatMessage] = Field(
        min_length=1,
        max_length=MAX_MESSAGES,
        description=(
            "Messages of the conversation. Content is a text or a list of text parts (and `refusal` in an "
            "assistant's); other parts are refused with an error that names them. Other roles than OpenAI's are "
            "passed to the chat template, which may refuse them."
        ),
    )
    max_tokens: int | None = Field(
        None, ge=1, description="Maximum number of tokens in the answer. Default: as many as fit in the context."
    )
    max_completion_tokens: int | None = Field(
        None, ge=1, description="OpenAI's newer name for `max_tokens`; takes precedence over it."
    )
    logprobs: bool | None = Field(
        None,
        description="Whether to return the log probability of each token, under the model's raw distribution.",
    )
    top_logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_LOGPROBS,
        description="With `logprobs`: number of most likely tokens to return at each position.",
    )
    thinking_token_budget: int | None = Field(
        None,
        ge=-1,
        lt=2**31,
        description=(
            "Maximum number of reasoning tokens, after which the end of the reasoning is forced; -1: no limit. "
            "Refused if the model does not reason."
        ),
    )
    include_reasoning: bool | None = Field(None, description="If false, the reasoning is left out of the answer.")
    echo: bool | None = Field(None, description="Refused, unless false.")

    def check(self, max_n: int) -> None:
        self.check_options(max_n)
        check_messages(self.messages, "messages")

    def check_options(self, max_n: int) -> None:
        """Checks every field but the messages. Raises ApiError."""
        super().check(max_n)
        if self.echo:
            message = "'echo' is not supported for chats by this server. Remove it from your request."
            raise ApiError(ErrorKind.UNSUPPORTED, message, "echo")
        if self.logprob_token_ids and not self.logprobs:
            raise invalid("Invalid 'logprob_token_ids': it needs 'logprobs' to be true.", "logprob_token_ids")
        if self.top_logprobs and not self.logprobs:
            raise invalid("Invalid 'top_logprobs': it needs 'logprobs' to be true.", "top_logprobs")
        self.check_functions(has_tools=bool(self.tools) or self.tool_choice is not None)
        self.check_prompt()

    @property
    def output_limit(self) -> tuple[int | None, str]:
        """Maximum number of tokens in the answer, and the name of the field that sets it. None: only the context limits
        the answer."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens, "max_completion_tokens"
        return self.max_tokens, "max_tokens"

    @property
    def style(self) -> ChatStyle:
        return ChatStyle(
            with_logprobs=bool(self.logprobs),
            with_usage=self.include_usage,
            with_token_ids=bool(self.return_token_ids),
            with_reasoning=self.include_reasoning is not False,
            names_tokens_by_id=bool(self.return_tokens_as_token_ids),
            names_function=isinstance(self.tool_choice, NamedTool) or isinstance(self.function_call, FunctionName),
            with_function_call=bool(self.functions),
        )

    def to_chat(self) -> ChatRequest:
        """Converts the body to a chat request. Raises ApiError."""
        return self.chat_of(self.messages, "messages")

    def chat_of(self, messages: Sequence[ChatMessage], path: str) -> ChatRequest:
        """Returns the request for an answer to `messages`. `path`: path of the messages in the body, for error
        messages. Raises ApiError."""
        limit, limit_param = self.output_limit
        tools, tool_choice = (
            self.functions_and_choice()
            if self.functions
            else tools_and_choice(self.tools, self.tool_choice, self.parallel_tool_calls)
        )
        return ChatRequest(
            model=self.model,
            messages=template_messages(messages, path),
            options=self.options(limit, (self.top_logprobs or 0) if self.logprobs else None),
            add_special_tokens=bool(self.add_special_tokens),
            add_generation_prompt=self.adds_generation_prompt,
            continue_final_message=bool(self.continue_final_message),
            chat_template=self.chat_template,
            tools=tools,
            tool_choice=tool_choice,
            template_kwargs=self.template_kwargs,
            documents=self.documents,
            thinking_budget=_budget(self.thinking_token_budget),
            messages_param=path,
            tool_path=FUNCTIONS_PATH if self.functions else OPENAI_PATH,
            max_tokens_param=limit_param,
        )


def template_messages(messages: Sequence[ChatMessage], path: str) -> list[dict[str, Any]]:
    """Returns the messages as chat templates expect them. `path`: path of the messages in the body, for error messages.
    Raises ApiError."""
    written = with_tool_messages([message.to_template() for message in messages], path)
    check_tool_messages(written, path)
    return written


def check_messages(messages: list[ChatMessage], path: str = "messages") -> None:
    """Raises ApiError if a message has a part of a type that is not supported. Also raises it if a message whose author
    is not the assistant has a refusal, has reasoning, or lacks content. `path`: path of the messages in the body, for
    error messages."""
    for index, message in enumerate(messages):
        parts = message.content if isinstance(message.content, list) else []
        for position, part in enumerate(parts):
            param = f"{path}[{index}].content[{position}].type"
            if isinstance(part, OtherPart):
                text = f"Invalid value for '{param}': '{part.type}'. This model takes only text parts."
                raise invalid(text, param, "invalid_value")
            if isinstance(part, RefusalPart | ThinkingPart) and message.role != "assistant":
                text = f"Invalid value for '{param}': '{part.type}'. Only an assistant's message can have such a part."
                raise invalid(text, param, "invalid_value")
        # A message of the assistant can lack content: it can consist of calls or reasoning, or be empty because the
        # answer was cut.
        if message.content is None and message.role != "assistant":
            param = f"{path}[{index}].content"
            raise invalid(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")
