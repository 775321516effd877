"""Anthropic's API: its request bodies, its answers, and the conversion of its requests to chat requests."""

from services.router.apis.anthropic.errors import anthropic_error
from services.router.apis.anthropic.models import ANTHROPIC_VERSION_HEADER, anthropic_card, anthropic_list
from services.router.apis.anthropic.paths import OPERATIONS
from services.router.apis.anthropic.replies import AnthropicError, AnthropicModel, AnthropicModelList
from services.router.apis.anthropic.servicer import AnthropicServicer

__all__ = [
    "ANTHROPIC_VERSION_HEADER",
    "OPERATIONS",
    "AnthropicError",
    "AnthropicModel",
    "AnthropicModelList",
    "AnthropicServicer",
    "anthropic_card",
    "anthropic_error",
    "anthropic_list",
]
