"""Sampling fields of JSON bodies, with the names, ranges and descriptions that most HTTP APIs share.

An API in which a field has another name or range declares the field itself. Examples are Ollama's `repeat_penalty` and
Anthropic's `temperature`.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from services.router.parameters import SamplingParams, check_ranges

_UINT64 = 2**64 - 1

TEMPERATURE = "Sampling temperature: divides the logits before sampling; 0 is greedy."


Temperature = Annotated[float | None, Field(ge=0, le=2, description=TEMPERATURE)]
TopP = Annotated[
    float | None,
    Field(
        ge=0,
        le=1,
        description=(
            "Samples from the smallest set of most likely tokens whose probabilities add up to this; 0 keeps only "
            "the most likely token."
        ),
    ),
]
TopK = Annotated[
    int | None, Field(ge=-1, le=2**31, description="Samples from the k most likely tokens; -1 and 0 keep all.")
]
MinP = Annotated[
    float | None,
    Field(
        ge=0,
        le=1,
        description="Samples from tokens whose probability is at least this fraction of the most likely token's.",
    ),
]
PresencePenalty = Annotated[
    float | None,
    Field(ge=-2, le=2, description="Subtracted from the logit of every token that is already in the answer."),
]
FrequencyPenalty = Annotated[
    float | None,
    Field(ge=-2, le=2, description="Subtracted from the logit of every token in the answer, once for each occurrence."),
]
RepetitionPenalty = Annotated[
    float | None,
    Field(
        gt=0,
        le=100,
        description=(
            "Divides positive logits, and multiplies negative ones, of every token in the prompt and the answer; "
            "1 has no effect."
        ),
    ),
]
Seed = Annotated[
    int | None,
    Field(
        ge=-(2**63),
        le=_UINT64,
        description="Random seed: equal requests with equal seeds get equal tokens. Default: a random one.",
    ),
]


class SamplingFields(BaseModel):
    """Sampling fields of a body, under vLLM's names. None: the request does not have the field."""

    temperature: Temperature = None
    top_p: TopP = None
    top_k: TopK = None
    min_p: MinP = None
    presence_penalty: PresencePenalty = None
    frequency_penalty: FrequencyPenalty = None
    repetition_penalty: RepetitionPenalty = None
    seed: Seed = None

    def sampling_params(self, **others: Any) -> SamplingParams:
        """Converts the fields to SamplingParams. `others`: further fields of SamplingParams, which take precedence over
        the body's. Raises ApiError as the function `sampling_params` does."""
        own = {name: getattr(self, name) for name in SamplingFields.model_fields}
        return sampling_params(**own | others)


def sampling_params(path: str = "", **fields: Any) -> SamplingParams:
    """Builds SamplingParams from a body's JSON fields. `path`: prefix of the fields' names in errors.

    Raises ApiError if a value is out of its range after rounding to single precision, which the protos use."""
    top_k, seed = fields.pop("top_k", None), fields.pop("seed", None)
    given = SamplingParams(
        # Both -1 and 0 keep all tokens; the proto has only 0.
        top_k=None if top_k is None else max(0, top_k),
        # The proto's seed is unsigned.
        seed=None if seed is None else seed & _UINT64,
        **fields,
    )
    return check_ranges(given, path)
