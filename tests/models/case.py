"""One tiny configuration that a test compares with transformers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from services.worker.implementations import Implementation


@dataclass(frozen=True, slots=True)
class Case:
    model_type: str  # transformers' name, such as gpt_neox
    # Configuration values that differ from `tiny.SIZES`, by the names of the model type's own configuration class.
    options: dict[str, Any] = field(default_factory=dict)
    variant: str = ""  # what sets it apart from the other cases of its model type
    head: str = ""  # only encoders: MaskedLM or SequenceClassification; empty: without a head
    attention: str = "eager"  # transformers' implementation of attention in the reference
    mechanism: str = ""  # what no other case in CI has; empty: only `make test-models` runs this case
    implementation: Implementation = "auto"

    def __str__(self) -> str:
        return ", ".join(part for part in (self.model_type, self.variant, self.head) if part)


def chosen(cases: Sequence[Case]) -> list[Case]:
    """Returns those with a mechanism of their own; all of them in `make test-models`."""
    return [case for case in cases if case.mechanism or os.environ.get("QUIRE_TEST_MODELS") == "all"]
