"""Qwen3-Coder and Qwen3.5: each call is tags, as function_tags.py has them, with values on lines of their own."""

from __future__ import annotations

from services.router.chat.parsers.function_tags import FunctionTags

QWEN3_CODER = FunctionTags("<tool_call>", "</tool_call>", line_break="\n").form()
