"""All kinds, in the order in which they are reported."""

from __future__ import annotations

from training.kinds import facts, letters, manners, numbers, quire, story, unknown
from training.kinds.kind import Kind

KINDS: tuple[Kind, ...] = (
    *numbers.KINDS,
    *letters.KINDS,
    *story.KINDS,
    *facts.KINDS,
    *quire.KINDS,
    *manners.KINDS,
    *unknown.KINDS,
)
