"""quire.anthropic.v1.AnthropicService: Anthropic's Messages API, behind Envoy's transcoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from google.api.httpbody_pb2 import HttpBody

from services.router.apis.anthropic.body import CountTokensBody, MessagesBody
from services.router.apis.anthropic.writer import AnthropicWriter
from services.router.dispatch import Placement
from services.router.http import JSON, ChatService, dump, parsing_work, read_body
from services.router.metrics import RequestMetrics
from services.router.model import ServedModel
from services.router.rpc import Calls, Prepared
from services.router.text import TextThreads


@dataclass(frozen=True, slots=True)
class AnthropicServicer:
    calls: Calls
    placement: Placement
    chats: ChatService
    metrics: RequestMetrics
    threads: TextThreads

    async def CreateMessage(self, request: HttpBody, context: Any) -> Prepared:  # noqa: N802
        data = request.data
        body = await read_body(self.threads, data, MessagesBody)
        self.metrics.ignored_fields["messages"] += body.num_ignored_fields

        def writer(model: ServedModel) -> AnthropicWriter:
            return AnthropicWriter(model.info.name, body.shows_thinking, body.max_tokens)

        chat = await self.threads.run(parsing_work(data), body.to_chat)
        return await self.chats.answer(chat, context, writer, stream=bool(body.stream))

    async def CountTokens(self, request: HttpBody, context: Any) -> HttpBody:  # noqa: N802
        data = request.data
        body = await read_body(self.threads, data, CountTokensBody)
        self.metrics.ignored_fields["messages.count_tokens"] += body.num_ignored_fields
        chat = await self.threads.run(parsing_work(data), body.to_chat)
        prompt = await self.chats.prompt(chat, await self.placement.models.find(chat.model))
        return HttpBody(content_type=JSON, data=dump({"input_tokens": len(prompt)}))
