"""vLLM's /tokenize, /detokenize and /tokenizer_info: their bodies, and the answer of /tokenizer_info."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from services.router.apis.openai.chat_completions import ChatMessage, check_messages, template_messages
from services.router.apis.openai.prompt_fields import PromptFields
from services.router.apis.openai.tools import tools_and_choice
from services.router.chat import ChatRequest
from services.router.errors import invalid
from services.router.generation import GenerationOptions
from services.router.http import Body
from services.router.model import ServedModel
from services.router.parameters import SamplingParams, StopConditions
from services.router.prompt import MAX_MESSAGES


class TokenizeRequest(Body, PromptFields):
    model: str | None = Field(
        None, description="Name or alias of a served model. Default: that of `--default-model`, or the only one."
    )
    prompt: str | None = Field(None, description="Text to tokenize.")
    messages: list[ChatMessage] | None = Field(
        None,
        min_length=1,
        max_length=MAX_MESSAGES,
        description="Conversation to tokenize, after the chat template is applied.",
    )
    add_special_tokens: bool | None = Field(
        None,
        description="Whether the tokenizer adds special tokens. Default: true for a text, false for a conversation.",
    )
    return_token_strs: bool | None = Field(None, description="Whether to return the tokens' strings as well.")

    def check(self) -> None:
        """Checks constraints that the schema cannot express. Raises ApiError."""
        if (self.prompt is None) == (self.messages is None):
            raise invalid("Exactly one of 'prompt' and 'messages' is required.", "prompt")
        if self.messages is not None:
            check_messages(self.messages)
            self.check_prompt()

    def to_chat(self) -> ChatRequest:
        """Returns a chat request whose prompt is to be tokenized. Raises ApiError."""
        assert self.messages is not None
        tools, tool_choice = tools_and_choice(self.tools, self.tool_choice, self.parallel_tool_calls)
        messages = template_messages(self.messages, "messages")
        return ChatRequest(
            model=self.model,
            messages=messages,
            options=GenerationOptions(SamplingParams(), StopConditions()),
            tools=tools,
            tool_choice=tool_choice,
            add_special_tokens=bool(self.add_special_tokens),
            add_generation_prompt=self.adds_generation_prompt,
            continue_final_message=bool(self.continue_final_message),
            chat_template=self.chat_template,
            template_kwargs=self.template_kwargs,
            documents=self.documents,
        )


class DetokenizeRequest(Body):
    model: str | None = Field(
        None, description="Name or alias of a served model. Default: that of `--default-model`, or the only one."
    )
    tokens: list[int] = Field(description="Token ids to turn into text.")


def tokenizer_info(model: ServedModel) -> dict[str, Any]:
    """Returns a model's tokenizer_config.json, with the chat template and the maximum length that the server uses."""
    template = model.tokenizer.chat_template
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **model.tokenizer.config,
        "chat_template": None if template is None else template.source,
        "max_model_len": model.info.max_model_len,
    }
