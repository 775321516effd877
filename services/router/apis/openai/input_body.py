"""Base class of the bodies with inputs: texts, token ids or a conversation."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from services.router.apis.openai.chat_completions import ChatMessage, check_messages, template_messages
from services.router.apis.openai.pooling_body import PoolingBody, Text
from services.router.apis.openai.prompt_fields import TemplateFields
from services.router.embedding import MAX_INPUTS, InputOptions, check_token_inputs, encode_texts
from services.router.errors import invalid
from services.router.http import union
from services.router.model import ServedModel
from services.router.prompt import MAX_MESSAGES, encode_chat, templates_for


def _input_kind(value: object) -> str | None:
    if isinstance(value, str):
        return "#string"
    if not isinstance(value, list):
        return None
    first = value[0] if value else None
    return "#strings" if isinstance(first, str) else "#token_lists" if isinstance(first, list) else "#tokens"


_Tokens = Annotated[list[int], Field(min_length=1)]


class InputBody(PoolingBody, TemplateFields):
    input: (
        Annotated[
            Annotated[Text, Tag("#string")]
            | Annotated[list[Text], Field(max_length=MAX_INPUTS), Tag("#strings")]
            | Annotated[_Tokens, Tag("#tokens")]
            | Annotated[list[_Tokens], Field(max_length=MAX_INPUTS), Tag("#token_lists")],
            union(_input_kind, "a string, an array of strings, token ids or arrays of token ids"),
        ]
        | None
    ) = Field(
        None,
        description=("Input or inputs: a string, a list of strings, a list of token ids, or a list of such lists."),
    )
    truncation_side: Literal["left", "right"] | None = Field(
        None,
        description=(
            "Where `truncate_prompt_tokens` cuts: `right` (default) drops the end of an input, `left` its beginning."
        ),
    )
    messages: list[ChatMessage] | None = Field(
        None,
        min_length=1,
        max_length=MAX_MESSAGES,
        description=("A conversation, instead of `input`, after the chat template is applied; vLLM's extension."),
    )

    @property
    def input_options(self) -> InputOptions:
        return replace(super().input_options, keeps_end=self.truncation_side == "left")

    def checked_messages(self) -> list[dict[str, Any]]:
        """Returns the conversation's messages as chat templates expect them, or an empty list if the body has `input`.
        Raises ApiError for errors that the schema cannot express."""
        if self.input is None and self.messages is None:
            raise invalid("Missing required parameter: 'input'.", "input", "missing_required_parameter")
        if self.messages is None:
            return []
        if self.input is not None:
            raise invalid("Give either 'input' or 'messages', not both.", "messages")
        check_messages(self.messages)
        self.check_prompt()
        return template_messages(self.messages, "messages")

    async def encode(self, model: ServedModel, messages: list[dict[str, Any]], *, prefix: str = "") -> list[list[int]]:
        """Returns the token ids of each input. `messages`: result of `checked_messages`. `prefix`: the model's prompt
        in front of texts. A conversation gets none, because its template frames it. Raises ApiError."""
        if messages:
            conversation = await self._conversation(model, messages)
            return check_token_inputs(model, [conversation], ["messages"], self.input_options)
        given: Any = self.input
        if isinstance(given, str) or isinstance(given[0], int):
            given, params = [given], ["input"]
        else:
            params = [f"input[{index}]" for index in range(len(given))]
        if isinstance(given[0], str):
            return await encode_texts(model, given, params, replace(self.input_options, prefix=prefix))
        options = self.input_options
        return await model.tokenizer.threads.run(
            sum(map(len, given)), lambda: check_token_inputs(model, given, params, options)
        )

    async def _conversation(self, model: ServedModel, messages: list[dict[str, Any]]) -> list[int]:
        templates = templates_for(model.tokenizer, self.chat_template, has_tools=False)
        return await encode_chat(
            model,
            messages,
            add_special_tokens=bool(self.add_special_tokens),
            add_generation_prompt=bool(self.add_generation_prompt),
            continue_final_message=bool(self.continue_final_message),
            template=templates[0] if templates else None,
            template_kwargs=self.chat_template_kwargs,
            # With truncate_prompt_tokens, the length is not checked yet, because `encode` cuts the conversation.
            checks_length=self.truncate_prompt_tokens is None,
        )
