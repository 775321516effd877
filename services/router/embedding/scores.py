"""Similarity of texts: the cosines of their embeddings."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from services.router.embedding.embedder import floats_of
from services.router.errors import invalid
from services.router.model import ServedModel
from services.router.parameters import PoolingParams

# With vectors of length 1, the cosine is the dot product.
UNIT_LENGTH = PoolingParams(normalize=True)
# `threads.run` counts work in characters to tokenize. Multiplying this many bytes of vectors takes as long as
# tokenizing one character.
_VECTOR_BYTES_PER_CHAR = 64


def check_pairs(first: Sequence[str], second: Sequence[str], params: tuple[str, str] = ("text_1", "text_2")) -> None:
    """Raises ApiError unless `first` has one text, or as many texts as `second`. A single text is paired with every
    text of `second`; otherwise texts are paired by position. `params`: the names of both lists in errors."""
    if len(first) not in (1, len(second)):
        param, other = params
        message = f"Invalid '{param}': expected one text or {len(second)}, as in '{other}', but got {len(first)}."
        raise invalid(message, param)


async def cosines(model: ServedModel, first: list[bytes], second: list[bytes]) -> list[float]:
    """Returns, for each vector of `second`, the cosine with the vector of `first` at the same position, or with the
    only vector of `first`. All vectors must have length 1 (see UNIT_LENGTH)."""

    def work() -> list[float]:
        left, right = [floats_of(vector) for vector in first], [floats_of(vector) for vector in second]
        pairs = zip(left * (len(right) if len(left) == 1 else 1), right, strict=True)
        return [sum(map(operator.mul, a, b)) for a, b in pairs]

    return await model.tokenizer.threads.run(sum(map(len, second)) // _VECTOR_BYTES_PER_CHAR, work)
