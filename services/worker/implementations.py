"""Which code computes a decoder's forward pass."""

from __future__ import annotations

from typing import Literal

Implementation = Literal["auto", "native", "transformers"]
IMPLEMENTATIONS: tuple[Implementation, ...] = ("auto", "native", "transformers")
