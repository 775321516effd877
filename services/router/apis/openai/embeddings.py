"""/v1/embeddings: its body, the tokenization of its inputs, and its answer."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, Tag

from services.router.apis.openai.chat_completions import ChatMessage, check_messages, template_messages
from services.router.apis.openai.pooling_body import PoolingBody, Text, usage_of
from services.router.apis.openai.prompt_fields import TemplateFields
from services.router.dispatch import Placement
from services.router.embedding import (
    MAX_INPUTS,
    Embedder,
    EmbeddingRequest,
    check_token_inputs,
    embedding_of,
    encode_texts,
    floats_of,
)
from services.router.errors import invalid
from services.router.generation import Tracing
from services.router.http import array, dumps, in_pieces, union, write_pieces
from services.router.model import ServedModel
from services.router.parameters import PoolingParams
from services.router.prompt import MAX_MESSAGES, encode_chat, templates_for
from services.router.rpc import Calls, Prepared, caller_of


def _input_kind(value: object) -> str | None:
    if isinstance(value, str):
        return "#string"
    if not isinstance(value, list):
        return None
    first = value[0] if value else None
    return "#strings" if isinstance(first, str) else "#token_lists" if isinstance(first, list) else "#tokens"


_Tokens = Annotated[list[int], Field(min_length=1)]


class EmbeddingBody(PoolingBody, TemplateFields):
    not_built: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **PoolingBody.not_built,
        "embed_dtype": ("float32",),
        "endianness": ("native", "little"),
    }

    input: (
        Annotated[
            Annotated[Text, Tag("#string")]
            | Annotated[list[Text], Field(max_length=MAX_INPUTS), Tag("#strings")]
            | Annotated[_Tokens, Tag("#tokens")]
            | Annotated[list[_Tokens], Field(max_length=MAX_INPUTS), Tag("#token_lists")],
            union(_input_kind, "a string, an array of strings, token ids or arrays of token ids"),
        ]
        | None
    ) = Field(
        None,
        description=(
            "Input or inputs to embed: a string, a list of strings, a list of token ids, or a list of such lists."
        ),
    )
    messages: list[ChatMessage] | None = Field(
        None,
        min_length=1,
        max_length=MAX_MESSAGES,
        description=(
            "A conversation to embed, instead of `input`, after the chat template is applied; vLLM's extension."
        ),
    )
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="Encoding of the vectors: `float` (default) or `base64` (float32, little-endian)."
    )
    dimensions: int | None = Field(
        None,
        ge=1,
        lt=2**31,
        description="Number of values to keep of each vector, if the model was trained for shorter vectors.",
    )
    normalize: bool | None = Field(
        None, description="Whether vectors are scaled to length 1. Default: the model's own setting."
    )

    def checked_messages(self) -> list[dict[str, Any]]:
        """Returns the conversation's messages as chat templates expect them, or an empty list if the body has `input`.
        Raises ApiError for errors that the schema cannot express."""
        if self.input is None and self.messages is None:
            raise invalid("Missing required parameter: 'input'.", "input", "missing_required_parameter")
        if self.messages is None:
            return []
        if self.input is not None:
            raise invalid("Give either 'input' or 'messages', not both.", "messages")
        check_messages(self.messages)
        self.check_prompt()
        return template_messages(self.messages, "messages")

    async def encode(self, model: ServedModel, messages: list[dict[str, Any]]) -> list[list[int]]:
        """Returns the token ids of each input. `messages`: result of `checked_messages`. Raises ApiError."""
        if messages:
            conversation = await self._conversation(model, messages)
            return check_token_inputs(model, [conversation], ["messages"], self.input_options)
        given: Any = self.input
        if isinstance(given, str) or isinstance(given[0], int):
            given, params = [given], ["input"]
        else:
            params = [f"input[{index}]" for index in range(len(given))]
        if isinstance(given[0], str):
            return await encode_texts(model, given, params, self.input_options)
        options = self.input_options
        return await model.tokenizer.threads.run(
            sum(map(len, given)), lambda: check_token_inputs(model, given, params, options)
        )

    async def _conversation(self, model: ServedModel, messages: list[dict[str, Any]]) -> list[int]:
        templates = templates_for(model.tokenizer, self.chat_template, has_tools=False)
        return await encode_chat(
            model,
            messages,
            add_special_tokens=bool(self.add_special_tokens),
            add_generation_prompt=bool(self.add_generation_prompt),
            continue_final_message=bool(self.continue_final_message),
            template=templates[0] if templates else None,
            template_kwargs=self.chat_template_kwargs,
            # With truncate_prompt_tokens, the length is not checked yet, because `encode` cuts the conversation.
            checks_length=self.truncate_prompt_tokens is None,
        )


@dataclass(frozen=True, slots=True)
class EmbeddingService:
    placement: Placement
    calls: Calls
    embedder: Embedder
    tracing: Tracing

    async def answer(self, body: EmbeddingBody, messages: list[dict[str, Any]], context: Any) -> Prepared:
        """Prepares the answer. `messages`: result of `checked_messages`. Raises ApiError."""
        caller = caller_of(context)
        model = await self.placement.model(body.model)
        with self.tracing.request("embeddings", model.info.name, caller.traceparent) as span:
            pooling = PoolingParams(body.dimensions, body.normalize)
            pooling.check(embedding_of(model), "dimensions")
            request = EmbeddingRequest.of(
                model, caller, span.traceparent, await body.encode(model, messages), pooling,
                cache_salt=body.cache_salt or "", priority=body.priority or 0,
            )  # fmt: skip
            return span.prepared(self._answer, request, context, in_base64=body.encoding_format == "base64")

    async def _answer(self, request: EmbeddingRequest, context: Any, *, in_base64: bool) -> None:
        vectors = await self.embedder.all_vectors(request)
        texts = _texts(request.model.info.name, vectors, request.num_tokens, in_base64=in_base64)
        await write_pieces(self.calls, context, in_pieces(texts))


def _texts(model: str, vectors: list[bytes], num_tokens: int, *, in_base64: bool) -> Iterator[str]:
    """Yields the answer's JSON, one vector at a time."""
    yield '{"object":"list","data":'
    write = base64_text if in_base64 else floats_text
    yield from array(
        f'{{"object":"embedding","index":{index},"embedding":{write(vector)}}}' for index, vector in enumerate(vectors)
    )
    yield f',"model":{dumps(model)},"usage":{dumps(usage_of(num_tokens))}}}'


def base64_text(vector: bytes) -> str:
    """Returns a vector's JSON: a base64 string of float32 values, little-endian."""
    return f'"{base64.b64encode(vector).decode()}"'


def floats_text(vector: bytes) -> str:
    """Returns a vector's JSON: an array of numbers."""
    return dumps(floats_of(vector).tolist())
