"""docs/offline.md says what becomes of every field of SamplingParams, and says it as the code does."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from quire import SamplingParams

DOCUMENT = Path(__file__).parents[3] / "docs" / "offline.md"
# For each field one that asks for something.
VALUES = {
    "best_of": 2,
    "detokenize": False,
    "structured_outputs": {"regex": "a"},
    "stop": "x",
    "logit_bias": {1: 1.0},
    "ignore_eos": True,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "include_stop_str_in_output": True,
    "bad_words": ["x"],
    "allowed_token_ids": [1],
    "stop_token_ids": [1],
    "logprob_token_ids": [1],
    "temperature": 0.5,
    "top_p": 0.5,
    "min_p": 0.5,
}


def table() -> dict[str, str]:
    """By field: what becomes of it."""
    section = DOCUMENT.read_text().partition("## `SamplingParams`")[2]
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| `")]
    names = [name.strip(" `") for name, _ in rows]
    assert names == sorted(set(names)), "the table is sorted, and no field is there twice"
    return {name.strip(" `"): becomes.strip() for name, becomes in rows}


def handled(name: str) -> str:
    try:
        params = SamplingParams(**{name: VALUES.get(name, 2)})  # type: ignore[arg-type]
    except ValueError as error:
        return "refused" if str(error) == f"SamplingParams.{name} is not supported" else str(error)
    plain = SamplingParams()
    is_heeded = params.options() != plain.options() or params.detokenize != plain.detokenize
    return "done" if is_heeded else "ignored"


def test_the_table_says_what_the_code_does() -> None:
    assert table() == {field.name: handled(field.name) for field in dataclasses.fields(SamplingParams)}
