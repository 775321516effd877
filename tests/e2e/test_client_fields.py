"""The SDKs of the clients' environment can send no field that the tables in tests/unit/router/client_tables lack.

Development's own environment has other versions of them: tests/unit/router/test_client_fields.py asks the same there.
"""

from __future__ import annotations

import json
import os
import subprocess

from tests.e2e.conftest import ROOT
from tests.fakes.tools import CLIENTS_PYTHON, needs_clients
from tests.unit.router.test_client_fields import unknown_fields


@needs_clients()
def test_every_field_of_the_clients_sdks_is_in_the_table() -> None:
    program = ROOT / "tests" / "e2e" / "clients" / "request_fields.py"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    output = subprocess.run(
        [CLIENTS_PYTHON, program], env=environment, capture_output=True, text=True, check=True
    ).stdout
    found = json.loads(output)
    assert {"openai.chat", "anthropic.messages", "ollama.chat", "cohere.embed"} <= found.keys()
    assert unknown_fields(found) == {}
