"""How alike texts are: the cosines of their embeddings."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from services.router.embedding.embedder import floats_of
from services.router.errors import invalid
from services.router.model import ServedModel
from services.router.parameters import PoolingParams

# A cosine is the product of vectors of length 1.
UNIT_LENGTH = PoolingParams(normalize=True)
# To multiply so many bytes of vectors takes as long as to tokenize one character.
_VECTOR_BYTES_PER_CHAR = 64


def check_pairs(first: Sequence[str], second: Sequence[str], params: tuple[str, str] = ("text_1", "text_2")) -> None:
    """One text goes with each of some, or as many with as many, pair by pair. `params`: their names in errors. Raises
    ApiError for other numbers."""
    if len(first) not in (1, len(second)):
        param, other = params
        message = f"Invalid '{param}': expected one text or {len(second)}, as in '{other}', but got {len(first)}."
        raise invalid(message, param)


async def cosines(model: ServedModel, first: list[bytes], second: list[bytes]) -> list[float]:
    """Of each of `second` with the one of `first`, or with that at its place. Vectors are of UNIT_LENGTH."""

    def work() -> list[float]:
        left, right = [floats_of(vector) for vector in first], [floats_of(vector) for vector in second]
        pairs = zip(left * (len(right) if len(left) == 1 else 1), right, strict=True)
        return [sum(map(operator.mul, a, b)) for a, b in pairs]

    return await model.tokenizer.threads.run(sum(map(len, second)) // _VECTOR_BYTES_PER_CHAR, work)
