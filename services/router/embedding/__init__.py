"""Embeddings, classes and scores: the parts that all APIs share."""

from services.router.embedding.embedder import Embedder, floats_of
from services.router.embedding.inputs import (
    MAX_INPUTS,
    InputOptions,
    check_token_inputs,
    classifier_of,
    embedding_of,
    encode_texts,
)
from services.router.embedding.prompts import prompt_for
from services.router.embedding.request import ClassificationRequest, EmbeddingRequest
from services.router.embedding.scores import Scoring, TextPairs, check_pairs, plan_scores

__all__ = [
    "MAX_INPUTS",
    "ClassificationRequest",
    "Embedder",
    "EmbeddingRequest",
    "InputOptions",
    "Scoring",
    "TextPairs",
    "check_pairs",
    "check_token_inputs",
    "classifier_of",
    "embedding_of",
    "encode_texts",
    "floats_of",
    "plan_scores",
    "prompt_for",
]
