"""The chat template that a request's prompt is made with: one of the model's, or the request's own.

The two are rendered in different places. A model's is its operator's choice and is rendered in this process. A
request's own may be anybody's code and is rendered in processes with limits.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from services.router.template import ChatTemplate, ForeignTemplates, TemplateTraits, check_size
from services.router.text import TextThreads, Tokenizer


class PromptTemplate(Protocol):
    @property
    def source(self) -> str: ...

    async def traits(self) -> TemplateTraits:
        """Raises ApiError where the template cannot be probed."""

    async def render(self, size: int, arguments: Mapping[str, Any]) -> str:
        """The prompt's text. `size`: the work to reckon with, in characters. `arguments`: of ChatTemplate.render.
        Raises ApiError."""


@dataclass(frozen=True, slots=True)
class ModelTemplate:
    template: ChatTemplate
    threads: TextThreads

    @property
    def source(self) -> str:
        return self.template.source

    async def traits(self) -> TemplateTraits:
        # Found when the model was loaded.
        return self.template.traits

    async def render(self, size: int, arguments: Mapping[str, Any]) -> str:
        return await self.threads.run(size, functools.partial(self.template.render, **arguments))


@dataclass(frozen=True, slots=True)
class ForeignTemplate:
    source: str
    special_tokens: Mapping[str, str]
    processes: ForeignTemplates
    # For the traits and the rendering together, in time.monotonic's seconds.
    deadline: float

    async def traits(self) -> TemplateTraits:
        return await self.processes.traits(self.source, self.special_tokens, self.deadline)

    async def render(self, size: int, arguments: Mapping[str, Any]) -> str:
        return await self.processes.render(self.source, self.special_tokens, arguments, self.deadline)


def templates_for(tokenizer: Tokenizer, own: str | None, *, has_tools: bool) -> list[PromptTemplate]:
    """The templates that may write the request's prompt, the first choice first; empty where there is none. `own`: the
    request's. Of several named ones, `tool_use` is for requests with tools, as in transformers. Raises ApiError where
    the request's own is too large to look at."""
    if own is not None:
        check_size(own)
        processes = tokenizer.threads.foreign_templates
        return [ForeignTemplate(own, tokenizer.special_tokens, processes, processes.deadline())]
    named = [tokenizer.tool_template if has_tools else None, tokenizer.chat_template]
    return [ModelTemplate(template, tokenizer.threads) for template in named if template is not None]
