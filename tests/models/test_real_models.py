"""Models with trained weights: the text is transformers'. `make test-real-models` also compares other families."""

from __future__ import annotations

import pytest

from tests.models.real.catalogue import AT_HAND, Real
from tests.models.real.compare import compare_in_process, refer

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("real", AT_HAND, ids=lambda real: real.name)
def test_the_text_is_that_of_transformers(real: Real) -> None:
    if not real.is_here:
        pytest.skip(f"{real.name} is not at {real.directory}")
    compare_in_process(real, refer(real))
