"""Attention with linear biases (ALiBi: Press et al., 2022, section 3)."""

from __future__ import annotations


def alibi_slopes(num_heads: int, max_exponent: float = 8.0) -> list[float]:
    """Returns the slope of each head. See `AttentionForm.slopes`.

    A power of two of heads, n, has the slopes 2^(-max_exponent / n · (1, 2, ..., n)). Any other number of heads has
    those of the power of two below it, then every second one of the power of two above, from the first on.
    """
    below = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-max_exponent * (head + 1) / below) for head in range(below)]
    return slopes + [2.0 ** (-max_exponent * (2 * head + 1) / (2 * below)) for head in range(num_heads - below)]
