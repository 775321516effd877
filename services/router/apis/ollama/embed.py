"""The body of /api/embed, and its answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field, Tag

from services.router.apis.ollama.writer import NANOSECONDS
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
from services.router.http import Body, Items, in_pieces, string_or_array, texts_of, union
from services.router.model import ServedModel
from services.router.parameters import PoolingParams
from services.router.rpc import Caller


class EmbedBody(Body):
    model: str = Field(min_length=1, description="Name or alias of a served model, with or without `:latest`.")
    input: (
        Annotated[
            Annotated[str, Tag("#string")] | Annotated[list[str], Field(max_length=MAX_INPUTS), Tag("#array")],
            union(string_or_array, "a string or an array of strings"),
        ]
        | None
    ) = Field(
        None,
        description=(
            "Text or texts to embed. If there are none, nothing is embedded, as in requests that only load the model."
        ),
    )
    truncate: bool | None = Field(
        None, description="If false, texts that are too long for the model are refused; otherwise they are cut."
    )
    dimensions: int | None = Field(
        None,
        ge=1,
        lt=2**31,
        description="Number of values to keep of each vector, if the model was trained for shorter vectors.",
    )
    options: dict[str, Any] | None = Field(None, description="No effect.")
    keep_alive: Any = Field(None, description="No effect: models stay loaded.")

    @property
    def params(self) -> list[str]:
        """Path of each text in the body, for error messages."""
        is_list = isinstance(self.input, list)
        return [f"input[{index}]" if is_list else "input" for index in range(len(self.texts))]

    @property
    def texts(self) -> list[str]:
        given: Any = self.input
        return ([given] if given else []) if isinstance(given, str) else given or []


async def to_request(body: EmbedBody, model: ServedModel, caller: Caller, traceparent: str) -> EmbeddingRequest:
    """Tokenizes the texts and returns the request for their embeddings. Raises ApiError."""
    # As in Ollama, vectors are always scaled to length 1, whatever the model's default is.
    pooling = PoolingParams(body.dimensions, normalize=True)
    embedding = embedding_of(model)
    pooling.check(embedding, "dimensions")
    options = InputOptions(
        None if body.truncate is False else -1, remedy="leave 'truncate' out", prefix=prompt_for(embedding, None)
    )
    prompts = await encode_texts(model, body.texts, body.params, options)
    return EmbeddingRequest(model, caller, traceparent, prompts, pooling)


async def embedded(request: EmbeddingRequest, model: str, embedder: Embedder) -> Iterator[bytes]:
    """Embeds the texts and returns the answer's JSON in pieces. `model`: the model's name in the request. Raises
    ApiError."""
    started = time.monotonic()
    vectors = await embedder.all_vectors(request)
    return in_pieces(_texts(model, vectors, request.num_tokens, time.monotonic() - started))


def _texts(model: str, vectors: list[bytes], num_tokens: int, seconds: float) -> Iterator[str]:
    answer = {
        "model": model,
        "embeddings": Items(floats_of(vector).tolist() for vector in vectors),
        "total_duration": int(seconds * NANOSECONDS),
        # Always 0, because the model is loaded before the first request.
        "load_duration": 0,
        "prompt_eval_count": num_tokens,
    }
    return texts_of(answer)
