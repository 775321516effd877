"""Chooses the prompt of the model that goes in front of a text to embed, by the purpose of the vector.

Models for retrieval were trained with a text in front of each input, such as "search_query: " (Nomic Embed) or
"Instruct: ... Query:" (Qwen3-Embedding). Their vectors are of use only with the same texts.
"""

from __future__ import annotations

from services.router.errors import ApiError, ErrorKind, invalid
from services.router.parameters import EmbeddingInfo

# The purposes that Cohere's API names, and the names that models give to the prompts for them, in lower case. The first
# name that a model has decides.
_PURPOSES = {
    # retrieval.query is Jina's name, retrieval-query EmbeddingGemma's, web_search_query that of E5 Mistral, and
    # s2p_query Stella's.
    "search_query": ("search_query", "query", "retrieval.query", "retrieval-query", "web_search_query", "s2p_query"),
    "search_document": (
        "search_document",
        "document",
        "passage",
        "corpus",
        "retrieval.passage",
        "retrieval.document",
        "retrieval-document",
    ),
    "classification": ("classification",),
    "clustering": ("clustering",),
}
# A purpose in Cohere's API that a model of text cannot serve.
_IMAGE = "image"
_MAX_SHOWN_CHARS = 64
_MAX_LISTED = 32


def prompt_for(embedding: EmbeddingInfo, input_type: str | None) -> str:
    """Returns the text to put in front of what is embedded; empty if there is none. `input_type`: a purpose of Cohere's
    API, or the name of one of the model's prompts, as in vLLM. If the model has no prompt for the purpose, it was
    trained without one. None: the model's default, as in sentence-transformers. Empty: no prompt. Raises ApiError for
    any other purpose."""
    prompts = embedding.prompts
    if input_type is None:
        return embedding.default_prompt
    if input_type == "":
        return ""
    if input_type == _IMAGE:
        message = "Invalid 'input_type': 'image' is not supported: this server embeds only text."
        raise ApiError(ErrorKind.UNSUPPORTED, message, "input_type")
    if input_type in prompts:
        return prompts[input_type]
    if input_type not in _PURPOSES:
        raise _unknown(embedding, input_type)
    # Names that differ only in their case: the first one counts.
    by_lower_case = {name.lower(): text for name, text in reversed(list(prompts.items()))}
    for name in _PURPOSES[input_type]:
        if name in prompts:
            return prompts[name]
        if name in by_lower_case:
            return by_lower_case[name]
    return ""


def _unknown(embedding: EmbeddingInfo, input_type: str) -> ApiError:
    known = list(dict.fromkeys([*_PURPOSES, *embedding.prompts]))
    names = ", ".join([f"'{name[:_MAX_SHOWN_CHARS]}'" for name in known[:_MAX_LISTED]])
    more = " and more" if len(known) > _MAX_LISTED else ""
    message = f"Invalid 'input_type': '{input_type[:_MAX_SHOWN_CHARS]}'. Supported values are: {names}{more}."
    return invalid(message, "input_type")
