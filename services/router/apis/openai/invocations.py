"""/invocations, SageMaker's one path for everything: a body's fields tell which API it is meant for, as in vLLM."""

from __future__ import annotations

from enum import Enum, auto

import pydantic_core
from pydantic import RootModel

from services.router.apis.openai.chat_completions import ChatCompletionRequest
from services.router.apis.openai.completions import CompletionRequest
from services.router.apis.openai.embeddings import EmbeddingBody
from services.router.apis.openai.pooling_replies import EmbeddingList, Ranking, ScoreList
from services.router.apis.openai.replies import ChatCompletion, ChatCompletionChunk, Completion, CompletionChunk
from services.router.apis.openai.scoring import RerankBody, ScoreBody
from services.router.errors import invalid
from services.router.limits import check_json


class Invocation(RootModel[ChatCompletionRequest | CompletionRequest | EmbeddingBody | ScoreBody | RerankBody]):
    """For the document: the body that `invoked` tells it to be is checked by its own API."""


class InvocationReply(RootModel[ChatCompletion | Completion | EmbeddingList | ScoreList | Ranking]):
    pass


class InvocationEvent(RootModel[ChatCompletionChunk | CompletionChunk]):
    pass


class Invoked(Enum):
    CHAT = auto()
    COMPLETION = auto()
    EMBEDDING = auto()
    RERANK = auto()
    SCORE = auto()


# The first of them that a body has tells what it asks for.
_FIELDS = {
    "messages": Invoked.CHAT,
    "prompt": Invoked.COMPLETION,
    "input": Invoked.EMBEDDING,
    "query": Invoked.RERANK,
    "text_1": Invoked.SCORE,
    "queries": Invoked.SCORE,
}


def invoked(body: bytes) -> Invoked:
    """Raises ApiError where nothing tells, or the body holds too much."""
    check_json(body)
    try:
        value = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise invalid(f"We could not parse the JSON body of your request: {error}.") from None
    if not isinstance(value, dict):
        raise invalid("The JSON body of a request must be an object.")
    for name, api in _FIELDS.items():
        if name in value:
            return api
    names = ", ".join(f"'{name}'" for name in _FIELDS)
    raise invalid(f"The body does not tell what it asks for: it needs one of {names}.")
