"""OpenAI's Responses API: its bodies, items and events, and the conversion of its requests to chat requests."""

from services.router.apis.responses.body import InputTokensBody, ResponseBody
from services.router.apis.responses.paths import OPERATIONS
from services.router.apis.responses.response import ResponseObject, response_not_found
from services.router.apis.responses.writer import ResponseWriter

__all__ = ["OPERATIONS", "InputTokensBody", "ResponseBody", "ResponseObject", "ResponseWriter", "response_not_found"]
