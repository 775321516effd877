"""Tiles of quantized products that the benchmark compares, by the most rows of their class.

The numbers of programs are those that an H200 runs at once, one to five for each of its 132 SMs, as far as registers
and shared memory allow. A few candidates need more than 99 KiB of shared memory, and so do not fit an RTX 3090 or an
L40S. They show what tables for each compute capability would gain.
"""

from __future__ import annotations

from services.worker.ops.triton.tiles import Tiles

# The kernel of `eight_bit.py`.
EIGHT_BIT: dict[int, tuple[Tiles, ...]] = {
    16: (
        Tiles(16, 64, 128, 4, 5, 264),
        Tiles(16, 64, 128, 4, 5, 528),
        Tiles(16, 64, 128, 4, 4, 660),
        Tiles(16, 64, 256, 4, 3, 396),
        Tiles(16, 64, 256, 4, 4, 264),
        Tiles(16, 128, 128, 4, 4, 264),
        Tiles(16, 128, 128, 4, 4, 396),
        Tiles(16, 128, 128, 8, 4, 396),
        Tiles(16, 128, 128, 4, 5, 264),
    ),
    32: (
        Tiles(32, 64, 128, 4, 4, 264),
        Tiles(32, 64, 128, 4, 5, 396),
        Tiles(32, 64, 128, 4, 4, 528),
        Tiles(32, 64, 256, 4, 4, 264),
        Tiles(32, 128, 128, 4, 4, 132),
        Tiles(32, 128, 128, 4, 3, 396),
        Tiles(32, 128, 128, 8, 4, 264),
        Tiles(32, 128, 256, 8, 2, 264),
        Tiles(32, 256, 128, 8, 5, 132),
    ),
    64: (
        Tiles(64, 64, 128, 4, 4, 264),
        Tiles(64, 64, 128, 4, 4, 396),
        Tiles(64, 128, 128, 4, 4, 132),
        Tiles(64, 128, 128, 4, 4, 264),
        Tiles(64, 128, 128, 8, 4, 264),
        Tiles(64, 128, 128, 8, 3, 396),
        Tiles(64, 128, 64, 4, 6, 396),
        Tiles(64, 256, 128, 8, 2, 264),
        Tiles(64, 256, 128, 8, 4, 132),
    ),
    128: (
        Tiles(128, 64, 128, 4, 3, 264),
        Tiles(128, 64, 128, 4, 4, 264),
        Tiles(128, 128, 64, 8, 6, 132),
        Tiles(128, 128, 128, 8, 3, 264),
        Tiles(128, 128, 128, 8, 4, 132),
        Tiles(128, 128, 256, 8, 3, 132),
        Tiles(64, 128, 128, 8, 4, 264),
        Tiles(64, 256, 128, 8, 4, 132),
    ),
}
# The kernels of `four_bit.py` and `eight_bit_weights.py`. Their k is that of the repacked weight.
REPACKED: dict[int, tuple[Tiles, ...]] = {
    16: (
        Tiles(16, 64, 128, 4, 5, 528),
        Tiles(16, 64, 128, 4, 5, 660),
        Tiles(16, 128, 128, 4, 4, 396),
        Tiles(16, 128, 128, 4, 4, 528),
        Tiles(16, 128, 128, 4, 3, 528),
        Tiles(16, 128, 128, 8, 4, 264),
        Tiles(16, 128, 128, 8, 4, 396),
        Tiles(16, 256, 128, 8, 3, 264),
        Tiles(16, 256, 128, 8, 4, 264),
    ),
    32: (
        Tiles(32, 64, 128, 4, 4, 528),
        Tiles(32, 64, 128, 4, 3, 660),
        Tiles(32, 64, 128, 4, 4, 264),
        Tiles(32, 128, 128, 4, 4, 264),
        Tiles(32, 128, 128, 4, 4, 396),
        Tiles(32, 128, 128, 4, 3, 528),
        Tiles(32, 128, 128, 8, 4, 132),
        Tiles(32, 256, 128, 8, 3, 132),
        Tiles(32, 256, 128, 16, 3, 132),
    ),
    64: (
        Tiles(64, 64, 128, 4, 3, 396),
        Tiles(64, 64, 128, 4, 4, 264),
        Tiles(64, 64, 128, 8, 3, 264),
        Tiles(64, 128, 128, 4, 3, 264),
        Tiles(64, 128, 128, 8, 3, 132),
        Tiles(64, 128, 128, 8, 2, 264),
        Tiles(64, 256, 128, 8, 3, 132),
        Tiles(64, 256, 128, 16, 3, 132),
    ),
    128: (
        Tiles(128, 64, 128, 4, 2, 264),
        Tiles(128, 64, 128, 8, 2, 264),
        Tiles(128, 128, 128, 8, 2, 264),
        Tiles(128, 128, 128, 8, 3, 132),
        Tiles(64, 128, 128, 4, 3, 264),
        Tiles(64, 128, 128, 8, 3, 264),
        Tiles(64, 256, 128, 16, 3, 132),
    ),
}
