"""Greedy output equals transformers' in float32: one case for each mechanism. `make test-models` runs all cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models import table
from tests.models.case import Case, chosen
from tests.models.cases import ALL
from tests.models.compare import compare
from tests.models.twins import TWINS, count_distinct

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("case", chosen(ALL), ids=str)
def test_greedy_output_is_that_of_transformers(case: Case, tmp_path: Path) -> None:
    compare(case, tmp_path)


def test_no_two_cases_have_one_name() -> None:
    names = [str(case) for case in ALL]
    assert len(names) == len(set(names))


def test_every_architecture_has_a_test() -> None:
    assert set(table.other_names()) == set(table.OTHER_TESTS), "name the tests of others in tests/models/table.py"
    assert all((table.DOCUMENT.parents[1] / path).is_file() for path in table.OTHER_TESTS.values())


def test_a_hundred_types_are_compared_of_which_few_are_twins() -> None:
    types = {case.model_type for case in ALL}
    assert types >= {*TWINS, *TWINS.values()}
    assert count_distinct(types) >= 100


def test_the_table_in_the_documentation_is_up_to_date() -> None:
    text = table.DOCUMENT.read_text(encoding="utf-8")
    assert table.replaced(text) == text, "run `python -m tests.models.table`"
