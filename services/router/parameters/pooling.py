"""What vectors a model gives, and what a request wants of them: plain values between the APIs and the schedulers."""

from __future__ import annotations

from dataclasses import dataclass

from services.router.errors import invalid


@dataclass(frozen=True, slots=True)
class EmbeddingInfo:
    """As in quire/inference/v1/pooling.proto, but for what the schedulers see to."""

    # Values in a vector.
    size: int
    is_matryoshka: bool
    matryoshka_dimensions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PoolingParams:
    """None: left out by the client. Meanings as in quire/inference/v1/pooling.proto."""

    dimensions: int | None = None
    normalize: bool | None = None

    def check(self, embedding: EmbeddingInfo, param: str) -> None:
        """Raises ApiError where the model has no embeddings of so many dimensions. Its own number changes nothing, so
        every model takes that; others only those that were trained for it."""
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
        """Values in each vector."""
        return self.dimensions or embedding.size
