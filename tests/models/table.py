"""Writes the table of model types in docs/models.md: `python -m tests.models.table`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from services.worker.models import list_supported
from tests.models.case import Case
from tests.models.cases import ALL
from tests.models.encoder_cases import CASES, CLASSIFIERS

ENCODERS = [*CASES, *CLASSIFIERS]
DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"
_BEGIN, _END = "<!-- begin: written by tests/models/table.py -->\n", "<!-- end -->"
WAYS = {"auto": "Quire's own", "native": "Quire's own", "transformers": "transformers'"}
ENCODER = "Quire's own, an encoder"


def replaced(text: str) -> str:
    """Returns the document with an up-to-date table."""
    before, _, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    assert end, f"{DOCUMENT} lacks the marks of the table"
    return f"{before}{_BEGIN}{_table()}{_END}{after}"


def _table() -> str:
    by_type: dict[str, list[Case]] = {}
    for case in ALL:
        by_type.setdefault(case.model_type, []).append(case)
    encoders = Counter(case.model_type for case in ENCODERS)
    num_cases = len(ALL) + len(ENCODERS)
    lines = [
        f"{len(by_type)} types of decoders and {len(encoders)} of encoders are compared with transformers, "
        f"in {num_cases} configurations.\n",
        "\n",
        "| model type | code of the forward pass | configurations compared |\n",
        "|---|---|---|\n",
    ]
    for model_type, cases in sorted(by_type.items()):
        ways = " and ".join(dict.fromkeys(WAYS[case.implementation] for case in cases))
        lines.append(f"| `{model_type}` | {ways} | {len(cases)} |\n")
    lines += [f"| `{model_type}` | {ENCODER} | {count} |\n" for model_type, count in sorted(encoders.items())]
    architectures = ", ".join(f"`{one.architecture}`" for one in list_supported())
    return "".join(lines) + f"\nArchitectures that `config.json` can name: {architectures}.\n"


if __name__ == "__main__":
    DOCUMENT.write_text(replaced(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
