"""Quantized weights: how they lie in memory, how checkpoints store them, and what `--quantization` does.

`fp8.py`, `int8.py` and `int4.py` hold the three kinds, `weight.py` what they have in common. The readers of checkpoints
(`checkpoint.py` and the formats it names) turn every layout into one of these kinds, so that operations know three.
"""
