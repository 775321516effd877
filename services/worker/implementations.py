"""Which code computes a decoder's forward pass."""

from __future__ import annotations

from typing import Literal

# native: Quire's own code. transformers: transformers' code on Quire's pages, for any type of model. auto: Quire's own
# code for architectures that have a module, and transformers' code for others whose tokens a test has compared.
Implementation = Literal["auto", "native", "transformers"]
IMPLEMENTATIONS: tuple[Implementation, ...] = ("auto", "native", "transformers")
