"""/v1/chat/completions/batch, in vLLM's form: one request with several conversations, each answered by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from services.router.errors import ApiError, ErrorKind, invalid
from services.router.openai.chat_completions import ChatCompletionRequest, ChatMessage
from services.router.prompts import MAX_MESSAGES

MAX_CONVERSATIONS = 256
_Conversation = Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]


class ChatCompletionBatchRequest(ChatCompletionRequest):
    # A list of what its base has one of.
    messages: list[_Conversation] = Field(  # type: ignore[assignment]
        min_length=1,
        max_length=MAX_CONVERSATIONS,
        description="At most 256 conversations, each as a chat completion has its messages.",
    )

    def check(self, max_n: int) -> None:
        if self.stream:
            raise invalid("Invalid 'stream': a batch of conversations is not streamed.", "stream")
        if self.n is not None and self.n != 1:
            raise invalid("Invalid 'n': a batch has one answer to each conversation.", "n")
        for name in ("tools", "prompt_logprobs"):
            if getattr(self, name):
                message = f"'{name}' is not supported for batches of conversations. Remove it from your request."
                raise ApiError(ErrorKind.UNSUPPORTED, message, name)
        for conversation in self.conversations():
            conversation.check(max_n)

    def conversations(self) -> Iterator[ChatCompletionRequest]:
        """Each as a request of its own."""
        fields = {name: value for name, value in self.__dict__.items() if name in ChatCompletionRequest.model_fields}
        for index, messages in enumerate(self.messages):
            request = ChatCompletionRequest.model_construct(
                **fields | (self.model_extra or {}) | {"messages": messages}
            )
            request.name_messages(f"messages[{index}]")
            yield request
