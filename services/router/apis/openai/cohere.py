"""/v2/embed, Cohere's embeddings: its body and its answer. As in vLLM, errors have OpenAI's shape."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from services.router.apis.openai.embeddings import base64_text, floats_text
from services.router.apis.openai.pooling_body import Text
from services.router.dispatch import Placement
from services.router.embedding import (
    MAX_INPUTS,
    Embedder,
    EmbeddingRequest,
    InputOptions,
    embedding_of,
    encode_texts,
    floats_of,
    prompt_for,
)
from services.router.errors import ApiError, ErrorKind, invalid
from services.router.generation import Tracing
from services.router.http import Body, array, dumps, in_pieces, texts_of, write_pieces
from services.router.model import ServedModel
from services.router.parameters import PoolingParams
from services.router.rpc import Calls, Prepared, caller_of

EmbeddingType = Literal["float", "base64", "int8", "uint8", "binary", "ubinary"]
_NEEDS_A_CALIBRATION = ("int8", "uint8")


class CohereText(Body):
    type: str = Field(description="`text`; other types are refused.")
    text: str | None = Field(None, description="The text.")


class CohereInput(Body):
    content: list[CohereText] = Field(min_length=1, max_length=MAX_INPUTS, description="Parts of one text.")


class CohereEmbedBody(Body):
    known_extras = frozenset({"images", "user"})

    model: str | None = Field(
        None, description="Name or alias of a served model. Default: that of `--default-model`, or the only one."
    )
    texts: list[Text] | None = Field(None, min_length=1, max_length=MAX_INPUTS, description="Texts to embed.")
    inputs: list[CohereInput] | None = Field(
        None,
        min_length=1,
        max_length=MAX_INPUTS,
        description="Texts to embed, instead of `texts`; each is a list of text parts.",
    )
    input_type: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description=(
            "Purpose of the texts: `search_query`, `search_document`, `classification`, `clustering`, or the name of "
            "one of the model's prompts. The model's prompt for the purpose, if it has one, is put in front of each "
            "text. `image` is refused. Default: the model's default prompt, if it has one."
        ),
    )
    embedding_types: list[EmbeddingType] | None = Field(
        None,
        min_length=1,
        max_length=6,
        description=(
            "Encodings of the vectors: `float` (default), `base64` (float32, little-endian), `binary` and "
            "`ubinary` (one sign bit per value). `int8` and `uint8` are refused."
        ),
    )
    output_dimension: int | None = Field(
        None,
        ge=1,
        lt=2**31,
        description="Number of values to keep of each vector, if the model was trained for shorter vectors.",
    )
    truncate: Literal["NONE", "START", "END"] | None = Field(
        None,
        description="Where texts that are too long are cut: `START` or `END`. `NONE` refuses them. Default: `END`.",
    )
    max_tokens: int | None = Field(
        None, ge=1, lt=2**31, description="Maximum number of tokens of a text. Default: the model's maximum."
    )
    priority: int | None = Field(
        None,
        ge=-(2**31),
        lt=2**31,
        description="Scheduling priority, if the server schedules by priority; a lower value runs earlier.",
    )

    def check(self) -> None:
        """Checks constraints that the schema cannot express. Raises ApiError."""
        if (self.model_extra or {}).get("images"):
            raise ApiError(ErrorKind.UNSUPPORTED, "'images' is not supported: this server embeds only text.", "images")
        if (self.texts is None) == (self.inputs is None):
            raise invalid("Exactly one of 'texts' and 'inputs' is required.", "texts")
        for name in self.types:
            if name in _NEEDS_A_CALIBRATION:
                message = f"'embedding_types' of '{name}' are not supported: they need calibration data for the model."
                raise ApiError(ErrorKind.UNSUPPORTED, message, "embedding_types")
        for index, given in enumerate(self.inputs or ()):
            for position, part in enumerate(given.content):
                param = f"inputs[{index}].content[{position}]"
                if part.type != "text":
                    message = f"Invalid '{param}.type': '{part.type[:64]}'. Only text parts are supported."
                    raise ApiError(ErrorKind.UNSUPPORTED, message, f"{param}.type")
                if not part.text:
                    missing = f"{param}.text"
                    raise invalid(f"Missing required parameter: '{missing}'.", missing, "missing_required_parameter")

    @property
    def types(self) -> tuple[EmbeddingType, ...]:
        return tuple(dict.fromkeys(self.embedding_types or ("float",)))

    def named_texts(self) -> tuple[list[str], list[str]]:
        """Returns the texts, and the path of each text in the body, for error messages."""
        if self.texts is not None:
            return self.texts, [f"texts[{index}]" for index in range(len(self.texts))]
        inputs = self.inputs or []
        texts = ["\n".join(part.text or "" for part in given.content) for given in inputs]
        return texts, [f"inputs[{index}]" for index in range(len(texts))]


@dataclass(frozen=True, slots=True)
class CohereService:
    placement: Placement
    calls: Calls
    embedder: Embedder
    tracing: Tracing

    async def embed(self, body: CohereEmbedBody, context: Any) -> Prepared:
        """Prepares the answer. Raises ApiError."""
        caller = caller_of(context)
        model = await self.placement.models.find(body.model)
        with self.tracing.request("embeddings", model.info.name, caller) as span:
            embedding = embedding_of(model)
            pooling = PoolingParams(body.output_dimension, None)
            pooling.check(embedding, "output_dimension")
            if {"binary", "ubinary"} & set(body.types) and pooling.size(embedding) % 8:
                message = "Invalid 'embedding_types': binary types need vectors whose length is a multiple of 8."
                raise invalid(message, "embedding_types")
            texts, names = body.named_texts()
            prompts = await _encode(body, model, texts, names, prompt_for(embedding, body.input_type))
            request = EmbeddingRequest(
                model, caller, span.traceparent, prompts, pooling, priority=body.priority or 0
            )  # fmt: skip
            return span.prepared(self._answer, request, context, body.types, texts)

    async def _answer(
        self, request: EmbeddingRequest, context: Any, types: Sequence[EmbeddingType], texts: Sequence[str]
    ) -> None:
        vectors = await self.embedder.all_vectors(request)
        await write_pieces(self.calls, context, in_pieces(_texts(types, vectors, texts, request.num_tokens)))


async def _encode(
    body: CohereEmbedBody, model: ServedModel, texts: Sequence[str], names: Sequence[str], prefix: str
) -> list[list[int]]:
    """Returns the token ids of each text with `prefix` in front, cut as `truncate` says. Raises ApiError if a text has
    no tokens, or is too long although `truncate` is NONE."""
    limit = min(body.max_tokens or model.info.max_model_len, model.info.max_model_len)
    remedy = "set 'truncate' to 'END'"
    if body.truncate == "NONE":
        prompts = await encode_texts(model, texts, names, InputOptions(remedy=remedy, prefix=prefix))
        for prompt, name in zip(prompts, names, strict=True):
            if len(prompt) > limit:
                message = f"Invalid '{name}': it has {len(prompt)} tokens, more than the maximum of {limit}."
                raise invalid(f"{message} Shorten it, or {remedy}.", name)
        return prompts
    if body.truncate == "START":
        # As in vLLM, the prompt is cut first, because it is at the start.
        encoded = await model.tokenizer.encode_cut(texts, True, limit, keeps_end=True, params=names, prefix=prefix)
        for prompt, name in zip(encoded, names, strict=True):
            if not prompt:
                raise invalid(f"Invalid '{name}': it has no tokens.", name)
        return encoded
    return await encode_texts(model, texts, names, InputOptions(limit, remedy=remedy, prefix=prefix))


def _texts(
    types: Sequence[EmbeddingType], vectors: Sequence[bytes], texts: Sequence[str], num_tokens: int
) -> Iterator[str]:
    """Yields the answer's JSON in parts, one vector at a time: first all vectors in the first of `types`, then all in
    the next. `vectors`: float32, little-endian."""
    yield f'{{"id":"embd-{uuid.uuid4().hex}","embeddings":'
    separator = "{"
    for name in types:
        yield f"{separator}{dumps(name)}:"
        yield from array(map(_WRITERS[name], vectors))
        separator = ","
    yield '},"texts":'
    separator = "["
    for text in texts:
        yield separator
        yield from texts_of(text)
        separator = ","
    yield "[]" if separator == "[" else "]"
    meta = {
        "api_version": {"version": "2"},
        "billed_units": {"input_tokens": num_tokens},
        "tokens": {"input_tokens": num_tokens},
    }
    yield f',"meta":{dumps(meta)},"response_type":"embeddings_by_type"}}'


def _signs(vector: bytes) -> bytes:
    """Packs the signs of the vector's values, eight to a byte. A bit is set if its value is not negative. The first of
    eight values gets the byte's highest bit."""
    bits = "".join(["1" if value >= 0 else "0" for value in floats_of(vector)])
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


# Functions that return a vector's JSON, by the type of its encoding. `binary` bytes are the `ubinary` bytes minus 128.
_WRITERS: dict[EmbeddingType, Callable[[bytes], str]] = {
    "float": floats_text,
    "base64": base64_text,
    "binary": lambda vector: dumps([byte - 128 for byte in _signs(vector)]),
    "ubinary": lambda vector: dumps(list(_signs(vector))),
}
