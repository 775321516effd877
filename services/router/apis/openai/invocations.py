"""/invocations, SageMaker's single path for all requests. As in vLLM, the body's fields select the API."""

from __future__ import annotations

from enum import Enum, auto

import pydantic_core
from pydantic import RootModel

from services.router.apis.openai.chat_completions import ChatCompletionRequest
from services.router.apis.openai.classify import ClassifyBody
from services.router.apis.openai.completions import CompletionRequest
from services.router.apis.openai.embeddings import EmbeddingBody
from services.router.apis.openai.pooling_replies import Classification, EmbeddingList, Ranking, ScoreList
from services.router.apis.openai.replies import ChatCompletion, ChatCompletionChunk, Completion, CompletionChunk
from services.router.apis.openai.scoring import RerankBody, ScoreBody
from services.router.errors import invalid


# Used only for the OpenAPI document. A request's body is validated by the API that `invoked` returns for it.
class Invocation(
    RootModel[ChatCompletionRequest | CompletionRequest | EmbeddingBody | ClassifyBody | ScoreBody | RerankBody]
):
    """The body of a request to one of these APIs: chats, completions, embeddings, classes, score or rerank."""


class InvocationReply(RootModel[ChatCompletion | Completion | EmbeddingList | Classification | ScoreList | Ranking]):
    pass


class InvocationEvent(RootModel[ChatCompletionChunk | CompletionChunk]):
    pass


class Invoked(Enum):
    CHAT = auto()
    COMPLETION = auto()
    EMBEDDING = auto()
    CLASSIFICATION = auto()
    RERANK = auto()
    SCORE = auto()


# Fields that select the API. If a body has several of them, the first in this order counts. For a classifier, `input`
# selects CLASSIFICATION instead of EMBEDDING.
_FIELDS = {
    "messages": Invoked.CHAT,
    "prompt": Invoked.COMPLETION,
    "input": Invoked.EMBEDDING,
    "query": Invoked.RERANK,
    "text_1": Invoked.SCORE,
    "queries": Invoked.SCORE,
}


def invoked(body: bytes) -> tuple[Invoked, object]:
    """Returns the API that a body's fields select, and the value of `model`, which is not validated. Raises ApiError if
    the body is not a JSON object, or has no field that selects an API."""
    try:
        value = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise invalid(f"We could not parse the JSON body of your request: {error}.") from None
    if not isinstance(value, dict):
        raise invalid("The JSON body of a request must be an object.")
    for name, api in _FIELDS.items():
        if name in value:
            return api, value.get("model")
    names = ", ".join(f"'{name}'" for name in _FIELDS)
    raise invalid(f"The body must have one of these fields, which select the API: {names}.")
