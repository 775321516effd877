"""Plans and results of steps, and the state of the sequence slots, which every plan updates. Imports no torch."""

from services.worker.plan.batch import I32, I64, Batch, BatchState, Limits, PromptTokens
from services.worker.plan.given_embeddings import GivenEmbeddings
from services.worker.plan.sampling_params import SamplingParams
from services.worker.plan.step_plan import (
    F32,
    U32,
    DeviceTime,
    GeneratingSequence,
    Logprobs,
    NewSequence,
    PooledSequence,
    PoolingSequence,
    PromptLogprobs,
    Rows,
    SequenceError,
    StepPlan,
    StepResult,
)
from services.worker.plan.token_constraints import ThinkingLimit, TokenConstraints

__all__ = [
    "F32",
    "I32",
    "I64",
    "U32",
    "Batch",
    "BatchState",
    "DeviceTime",
    "GeneratingSequence",
    "GivenEmbeddings",
    "Limits",
    "Logprobs",
    "NewSequence",
    "PooledSequence",
    "PoolingSequence",
    "PromptLogprobs",
    "PromptTokens",
    "Rows",
    "SamplingParams",
    "SequenceError",
    "StepPlan",
    "StepResult",
    "ThinkingLimit",
    "TokenConstraints",
]
