"""A router image holds no torch, and a client needs nothing of the server's."""

from __future__ import annotations

import subprocess
import sys


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return set(output.split())


def test_the_router_imports_neither_torch_nor_other_services() -> None:
    modules = modules_after("import services.router.main")
    assert not {"torch", "services.scheduler", "services.worker"} & modules
    # Half a second that only chat templates need; a background thread pays for it.
    assert "transformers" not in modules


def test_rendering_a_template_does_not_bring_torch_in() -> None:
    statement = (
        "from services.router.template.chat_template import ChatTemplate\n"
        "ChatTemplate('x', {}).render([{'role': 'user', 'content': 'x'}])"
    )
    modules = modules_after(statement)
    assert "transformers" in modules
    assert "torch" not in modules


def test_importing_quire_brings_nothing_and_its_client_no_server() -> None:
    assert not {"grpc", "torch", "numpy"} & modules_after("import quire")
    modules = modules_after("from quire import AsyncClient, Client, QuireError, StreamCutError")
    assert not {"torch", "numpy", "pydantic", "tokenizers", "services", "shared"} & modules


def test_an_llm_brings_no_engine_into_its_program() -> None:
    modules = modules_after("from quire import LLM, SamplingParams")
    assert not {"torch", "numpy", "pydantic", "tokenizers", "transformers", "aiohttp", "jinja2"} & modules
