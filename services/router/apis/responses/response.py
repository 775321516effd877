"""The response object: its items, and the fields that it repeats from the request."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from services.router.apis.responses.body import ResponseBody
from services.router.chat import EndReason
from services.router.errors import ApiError, ErrorKind
from services.router.generation import Usage
from services.router.http import Items, Segment, SegmentKind, TokenNames, chat_logprobs
from services.router.logprobs import TokenLogprob
from services.router.model import ServedModel
from services.router.parameters import SamplingParams
from services.router.text import Vocabulary

_ID_PREFIXES = {SegmentKind.REASONING: "rs", SegmentKind.CONTENT: "msg", SegmentKind.TOOL_CALL: "fc"}


class ResponseObject:
    """One response. Its methods return the response and its items as JSON values, at any stage."""

    def __init__(self, body: ResponseBody, sampling: SamplingParams, model: ServedModel) -> None:
        """`sampling`: the sampling parameters of the body."""
        self._suffix = uuid.uuid4().hex
        self.vocabulary: Vocabulary | None = None if body.logprobs is None else model.tokenizer.vocabulary
        self._fields: dict[str, Any] = {
            "id": f"resp_{self._suffix}",
            "object": "response",
            "created_at": int(time.time()),
            "model": model.info.name,
            **_echo(body, sampling.resolve(model.info.default_sampling)),
            # None until the response ends.
            "usage": None,
        }

    def item_id(self, segment: Segment) -> str:
        return f"{_ID_PREFIXES[segment.kind]}_{self._suffix}{segment.index:04x}"

    def in_progress(self) -> dict[str, Any]:
        return self._with("in_progress", [])

    def ended(self, items: list[dict[str, Any]], reason: EndReason | None, usage: Usage) -> dict[str, Any]:
        ended = self._with("incomplete" if reason is EndReason.LENGTH else "completed", items)
        if reason is EndReason.LENGTH:
            ended["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            ended["completed_at"] = int(time.time())
        return ended | {"usage": _usage(usage)}

    def failed(self, items: list[dict[str, Any]], error: ApiError) -> dict[str, Any]:
        code = "rate_limit_exceeded" if error.kind is ErrorKind.OVERLOADED else "server_error"
        return self._with("failed", items) | {"error": {"code": code, "message": error.message}}

    def item(self, segment: Segment, status: str, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Returns an item. `status`: in_progress (no content yet), completed or incomplete."""
        item: dict[str, Any] = {"id": self.item_id(segment), "status": status}
        has_content = status != "in_progress"
        match segment.kind:
            case SegmentKind.CONTENT:
                content = [self.part(segment, segment.text, logprobs)] if has_content else []
                return item | {"type": "message", "role": "assistant", "content": content}
            case SegmentKind.REASONING:
                content = [self.part(segment, segment.text, ())] if has_content else []
                return item | {"type": "reasoning", "summary": [], "content": content}
            case SegmentKind.TOOL_CALL:
                call = {"call_id": segment.call_id, "name": segment.name, "arguments": segment.text}
                return item | {"type": "function_call", **call}

    def part(self, segment: Segment, text: str, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        if segment.kind is SegmentKind.REASONING:
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self.logprobs(logprobs)}

    def logprobs(self, entries: Sequence[TokenLogprob]) -> Items | list[Any]:
        """Returns the log probabilities of a text's tokens, for `texts_of` to encode; empty if the request does not ask
        for them."""
        if self.vocabulary is None:
            return []
        content: Items = chat_logprobs(entries, TokenNames(self.vocabulary))["content"]
        return content

    def _with(self, status: str, items: list[dict[str, Any]]) -> dict[str, Any]:
        return self._fields | {"status": status, "output": items}


def response_not_found(response_id: str) -> ApiError:
    message = f"Response with id '{response_id[:128]}' not found: this server does not store responses."
    return ApiError(ErrorKind.NOT_FOUND, message, "response_id")


def _echo(body: ResponseBody, effective: SamplingParams) -> dict[str, Any]:
    effort, summary = (None, None) if body.reasoning is None else (body.reasoning.effort, body.reasoning.summary)
    echo = {
        "background": False,
        "completed_at": None,
        "error": None,
        "frequency_penalty": _decimal(effective.frequency_penalty),
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "presence_penalty": _decimal(effective.presence_penalty),
        "previous_response_id": None,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": effort, "summary": summary},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        # Always false, because the server stores no responses.
        "store": False,
        "temperature": _decimal(effective.temperature),
        "text": _text(body),
        "tool_choice": _tool_choice(body),
        "tools": [tool.echo() for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": _decimal(effective.top_p),
        "truncation": body.truncation or "disabled",
    }
    return echo if body.user is None else echo | {"user": body.user}


def _decimal(value: float | None) -> float | None:
    """Rounds a single-precision value to seven significant digits. The result is equal to the number that the client
    sent, unless that number has more digits."""
    return None if value is None else float(f"{value:.7g}")


def _tool_choice(body: ResponseBody) -> Any:
    choice = body.tool_choice
    if choice is None or isinstance(choice, str):
        return choice or "auto"
    return choice.echo()


def _text(body: ResponseBody) -> dict[str, Any]:
    text: dict[str, Any] = {"format": {"type": "text"}}
    if body.text is not None and body.text.format is not None:
        text["format"] = body.text.format.echo()
    if body.text is not None and body.text.verbosity is not None:
        text["verbosity"] = body.text.verbosity
    return text


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
