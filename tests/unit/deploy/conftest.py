from __future__ import annotations

import pytest

from tests.unit.deploy.kubernetes import Manifests
from tests.unit.deploy.renderings import CHARTED, RENDERED, rendering, title


@pytest.fixture(params=[*RENDERED, *CHARTED], ids=title, scope="module")
def manifests(request: pytest.FixtureRequest) -> Manifests:
    return rendering(request.param)
