"""Text generation: runs requests given as token ids and returns their choices as text, for every API."""

from services.router.generation.choice_delta import MAX_CHARS_OF_DELTA, ChoiceDelta, in_short_deltas
from services.router.generation.generator import Generator
from services.router.generation.logprob_count import bounded, check_num_logprobs
from services.router.generation.options import GenerationOptions, ResolveConstraints
from services.router.generation.prompt_log import PromptLog
from services.router.generation.request import GenerationRequest
from services.router.generation.tracing import RequestSpan, Tracing
from services.router.generation.usage import Timings, Usage

__all__ = [
    "MAX_CHARS_OF_DELTA",
    "ChoiceDelta",
    "GenerationOptions",
    "GenerationRequest",
    "Generator",
    "PromptLog",
    "RequestSpan",
    "ResolveConstraints",
    "Timings",
    "Tracing",
    "Usage",
    "bounded",
    "check_num_logprobs",
    "in_short_deltas",
]
