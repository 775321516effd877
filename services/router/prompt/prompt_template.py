"""The chat template that renders a request's prompt: the model's, or the request's own.

The operator chose the model's template, so the router's own process renders it. A request's own template is untrusted
code, so separate processes with limits render it.
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
        """Returns which parts of a request the template writes into the prompt. Renders test messages to find out.
        Raises ApiError if the rendering takes too much time or memory, or if the router is overloaded."""

    async def render(self, size: int, arguments: Mapping[str, Any]) -> str:
        """Returns the prompt's text. `size`: an estimate of the work, in characters. `arguments`: those of
        ChatTemplate.render. Raises ApiError."""


@dataclass(frozen=True, slots=True)
class ModelTemplate:
    template: ChatTemplate
    threads: TextThreads

    @property
    def source(self) -> str:
        return self.template.source

    async def traits(self) -> TemplateTraits:
        # Nothing is rendered here: the router rendered the test messages when it loaded the model's tokenizer.
        return self.template.traits

    async def render(self, size: int, arguments: Mapping[str, Any]) -> str:
        return await self.threads.run(size, functools.partial(self.template.render, **arguments))


@dataclass(frozen=True, slots=True)
class ForeignTemplate:
    source: str
    special_tokens: Mapping[str, str]
    processes: ForeignTemplates
    # Deadline for `traits` and `render` together, in seconds of time.monotonic().
    deadline: float

    async def traits(self) -> TemplateTraits:
        return await self.processes.traits(self.source, self.special_tokens, self.deadline)

    async def render(self, size: int, arguments: Mapping[str, Any]) -> str:
        return await self.processes.render(self.source, self.special_tokens, arguments, self.deadline)


def templates_for(tokenizer: Tokenizer, own: str | None, *, has_tools: bool) -> list[PromptTemplate]:
    """Returns the templates that can render the request's prompt, in order of preference. `own`: the request's own
    template. The model's template `tool_use` is for requests with tools, as in transformers. Raises ApiError if the
    request's own template is too large."""
    if own is not None:
        check_size(own)
        processes = tokenizer.threads.foreign_templates
        return [ForeignTemplate(own, tokenizer.special_tokens, processes, processes.deadline())]
    named = [tokenizer.tool_template if has_tools else None, tokenizer.chat_template]
    return [ModelTemplate(template, tokenizer.threads) for template in named if template is not None]
