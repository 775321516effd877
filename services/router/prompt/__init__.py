"""Prompts: converts a request's text or messages to token ids that fit the model's context."""

from services.router.prompt.context_length import check_generates, output_budget
from services.router.prompt.encoding import (
    MAX_CALLS,
    MAX_DOCUMENTS,
    MAX_MESSAGES,
    check_call_arguments,
    check_detokenized,
    check_length,
    check_token_range,
    encode_chat,
    encode_text,
)
from services.router.prompt.prompt_template import PromptTemplate, templates_for

__all__ = [
    "MAX_CALLS",
    "MAX_DOCUMENTS",
    "MAX_MESSAGES",
    "PromptTemplate",
    "check_call_arguments",
    "check_detokenized",
    "check_generates",
    "check_length",
    "check_token_range",
    "encode_chat",
    "encode_text",
    "output_budget",
    "templates_for",
]
