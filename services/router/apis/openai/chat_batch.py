"""/v1/chat/completions/batch, in vLLM's format: one request with several conversations, each answered separately."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from pydantic import Field

from services.router.apis.openai.chat_completions import (
    ChatCompletionRequest,
    ChatMessage,
    check_messages,
    template_messages,
)
from services.router.chat import ChatRequest
from services.router.errors import ApiError, ErrorKind, invalid
from services.router.generation import check_num_logprobs
from services.router.prompt import MAX_MESSAGES

MAX_CONVERSATIONS = 256
# Cost of converting one conversation, as the number of characters that can be tokenized in the same time (the unit of
# TextThreads). At this cost, 16 or more conversations are converted in a thread.
_CONVERSATION_CHARS = 128
_Conversation = Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]


class ChatCompletionBatchRequest(ChatCompletionRequest):
    # A list of conversations. In the base class, `messages` is a single conversation, so mypy reports the type.
    messages: list[_Conversation] = Field(  # type: ignore[assignment]
        min_length=1,
        max_length=MAX_CONVERSATIONS,
        description="Conversations, at most 256; each is a list of messages as in a chat completion.",
    )

    def check(self, max_n: int) -> None:
        if self.stream:
            raise invalid("Invalid 'stream': a batch of conversations is not streamed.", "stream")
        if self.n is not None and self.n != 1:
            raise invalid("Invalid 'n': a batch returns one answer per conversation.", "n")
        for name in ("tools", "functions"):
            if getattr(self, name):
                raise _not_in_batches(name)
        if self.prompt_logprobs is not None:
            raise _not_in_batches("prompt_logprobs")
        self.check_options(max_n)
        for index, messages in enumerate(self.messages):
            check_messages(messages, f"messages[{index}]")

    def check_size(self, max_model_len: int) -> None:
        """Raises ApiError if the answer could have too many log probabilities."""
        if not self.logprobs:
            return
        limit, param = self.output_limit
        num_tokens = max_model_len if limit is None else min(limit, max_model_len)
        num_candidates = len(self.logprob_token_ids) if self.logprob_token_ids else self.top_logprobs or 0
        check_num_logprobs(len(self.messages) * num_tokens * (1 + num_candidates), param)

    @property
    def translation_work(self) -> int:
        """Cost of converting the parsed body, as the number of characters that can be tokenized in the same time (the
        unit of TextThreads)."""
        return len(self.messages) * _CONVERSATION_CHARS

    def to_chats(self) -> list[ChatRequest]:
        """Returns a request for each conversation. The body's other fields are converted only once: all requests share
        the converted objects. Raises ApiError."""
        shared = self.chat_of(self.messages[0], "messages[0]")
        chats = [shared]
        for index, messages in enumerate(self.messages[1:], 1):
            path = f"messages[{index}]"
            written = template_messages(messages, path)
            chats.append(dataclasses.replace(shared, messages=written, messages_param=path))
        return chats


def _not_in_batches(name: str) -> ApiError:
    message = f"'{name}' is not supported for batches of conversations. Remove it from your request."
    return ApiError(ErrorKind.UNSUPPORTED, message, name)
