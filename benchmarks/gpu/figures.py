"""Figures that a part of the benchmark measures, and their table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

_TIMES = ("s", "ms", "us")


@dataclass(frozen=True, slots=True)
class Figure:
    """A time or a rate. `floor`: the hardware's limit, the shortest time or the highest rate."""

    name: str
    value: float | None  # None: not measured; `note` has the reason
    unit: str
    floor: float | None = None  # in the same unit
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Fraction of the hardware's limit that was reached: 1 at the limit."""
        if self.value is None or self.floor is None or not self.value or not self.floor:
            return None
        return self.floor / self.value if self.unit in _TIMES else self.value / self.floor

    def record(self) -> dict[str, str | float | None]:
        """Returns the fields for JSON."""
        return asdict(self) | {"ratio": self.ratio}


HEADER = f"{'figure':44}{'value':>12} {'unit':8}{'floor':>12}{'ratio':>8}  note"


def line(figure: Figure) -> str:
    ratio = "" if figure.ratio is None else f"{figure.ratio:.1%}"
    return (
        f"{figure.name:44}{_number(figure.value):>12} {figure.unit:8}{_number(figure.floor):>12}{ratio:>8}  "
        f"{figure.note}"
    ).rstrip()


def table(figures: Sequence[Figure]) -> str:
    return "\n".join((HEADER, *map(line, figures)))


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
