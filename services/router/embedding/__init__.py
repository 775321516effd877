"""Embeddings: the parts that all embedding APIs share."""

from services.router.embedding.embedder import Embedder, floats_of
from services.router.embedding.inputs import MAX_INPUTS, InputOptions, check_token_inputs, embedding_of, encode_texts
from services.router.embedding.request import EmbeddingRequest
from services.router.embedding.scores import UNIT_LENGTH, check_pairs, cosines

__all__ = [
    "MAX_INPUTS",
    "UNIT_LENGTH",
    "Embedder",
    "EmbeddingRequest",
    "InputOptions",
    "check_pairs",
    "check_token_inputs",
    "cosines",
    "embedding_of",
    "encode_texts",
    "floats_of",
]
