"""A request's parameters besides its prompt, as dataclasses: sampling, stop conditions, pooling and truncation."""

from services.router.parameters.pooling import ClassificationParams, ClassifierInfo, EmbeddingInfo, PoolingParams
from services.router.parameters.sampling import (
    MAX_LOGIT_BIAS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    SamplingParams,
    StopConditions,
    check_ranges,
    check_stop_strings,
    check_token_ids,
)
from services.router.parameters.truncation import Truncation
from shared.sampling_ranges import MAX_LOGPROBS

__all__ = [
    "MAX_LOGIT_BIAS",
    "MAX_LOGPROBS",
    "MAX_STOP_STRINGS",
    "MAX_STOP_TOKEN_IDS",
    "ClassificationParams",
    "ClassifierInfo",
    "EmbeddingInfo",
    "PoolingParams",
    "SamplingParams",
    "StopConditions",
    "Truncation",
    "check_ranges",
    "check_stop_strings",
    "check_token_ids",
]
