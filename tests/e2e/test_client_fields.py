"""The SDKs of the clients' environment can send no field or value that this server drops.

Development's own environment has other versions of them: tests/unit/router/test_client_fields.py asks the same there.
"""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import closing
from typing import Any

import pytest

from tests.e2e.conftest import ROOT
from tests.fakes.tools import CLIENTS_PYTHON, needs_clients
from tests.unit.router.converted_requests import Converter
from tests.unit.router.test_client_fields import dropped_values, unknown_fields

pytestmark = needs_clients()


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, list[Any]]]:
    """The fields of the SDKs' requests with the values that they list, as request_fields.py prints them."""
    program = ROOT / "tests" / "e2e" / "clients" / "request_fields.py"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    output = subprocess.run(
        [CLIENTS_PYTHON, program], env=environment, capture_output=True, text=True, check=True
    ).stdout
    printed = json.loads(output)
    assert {"openai.chat", "anthropic.messages", "ollama.chat", "cohere.embed"} <= printed.keys()
    return dict(printed)


def test_every_field_of_the_clients_sdks_is_in_the_table(found: dict[str, dict[str, list[Any]]]) -> None:
    assert unknown_fields(found) == {}


async def test_no_value_that_the_clients_sdks_list_is_dropped(found: dict[str, dict[str, list[Any]]]) -> None:
    with closing(Converter()) as converter:
        for name, values in found.items():
            assert await dropped_values(converter, name, values) == []
