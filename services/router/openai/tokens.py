"""The bodies of /tokenize and /detokenize, which are vLLM's."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from services.router.openai.body import Body
from services.router.openai.chat_completions import MAX_DOCUMENTS, ChatMessage
from services.router.prompts import MAX_MESSAGES


class TokenizeRequest(Body):
    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = Field(None, min_length=1, max_length=MAX_MESSAGES)
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    return_token_strs: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    # In OpenAI's form, as templates take them.
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = Field(None, max_length=MAX_DOCUMENTS)


class DetokenizeRequest(Body):
    model: str | None = None
    tokens: list[int]
