"""A model's embeddings and labels, and a request's pooling parameters, in a form that depends neither on the API
nor on the scheduler's protos."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.router.errors import invalid


@dataclass(frozen=True, slots=True)
class EmbeddingInfo:
    """Sizes and prompts of a model's embeddings, as in quire/inference/v1/pooling.proto, without the fields that only
    schedulers read.
    """

    # Number of values in a vector.
    size: int
    is_matryoshka: bool
    matryoshka_dimensions: tuple[int, ...]
    # The model's prompts: texts in front of what is embedded, by the names of their purposes.
    prompts: Mapping[str, str] = field(default_factory=dict)
    # The prompt of a text whose purpose is not given; empty: none.
    default_prompt: str = ""


@dataclass(frozen=True, slots=True)
class ClassifierInfo:
    """A model's classifier, as in quire/inference/v1/pooling.proto."""

    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClassificationParams:
    """Parameters of one sequence, as in quire/inference/v1/pooling.proto."""

    # None: the sequence is one text, or the tokenizer does not tell the texts of a pair apart.
    second_text_at: int | None = None
    activates: bool = True


@dataclass(frozen=True, slots=True)
class PoolingParams:
    """Pooling parameters as in quire/inference/v1/pooling.proto. None: the client did not set the field."""

    dimensions: int | None = None
    normalize: bool | None = None

    def check(self, embedding: EmbeddingInfo, param: str) -> None:
        """Raises ApiError if the model has no embeddings with `dimensions` dimensions. Every model accepts its own
        number of dimensions; only Matryoshka models accept other numbers. `param`: name of the field in errors."""
        given = self.dimensions
        if given is None or given == embedding.size:
            return
        allowed = embedding.matryoshka_dimensions
        if not embedding.is_matryoshka:
            why = f"this model's embeddings have {embedding.size} dimensions, and it was not trained for fewer"
        elif allowed and given not in allowed:
            why = f"this model has embeddings of {', '.join(map(str, allowed))} dimensions"
        elif not 1 <= given <= embedding.size:
            why = f"this model has embeddings of 1 to {embedding.size} dimensions"
        else:
            return
        raise invalid(f"Invalid '{param}': {given}. {why[0].upper()}{why[1:]}.", param)

    def size(self, embedding: EmbeddingInfo) -> int:
        """Returns the number of values in each embedding."""
        return self.dimensions or embedding.size
