"""docs/apis.md names the versions of the clients that the tests install."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


# The client that each program uses.
PROGRAMS = {
    "ai_sdk_client.cjs": "@ai-sdk/openai-compatible",
    "anthropic_client.cjs": "@anthropic-ai/sdk",
    "cohere_client.py": "cohere",
    "hub_client.py": "huggingface_hub",
    "instructor_client.py": "instructor",
    "langchain_client.py": "langchain-openai",
    "litellm_client.py": "litellm",
    "llama_index_client.py": "llama-index-llms-openai-like",
    "openai_agents_client.py": "openai-agents",
    "openai_client.cjs": "openai",
    "openai_client.py": "openai",
    "pydantic_ai_client.py": "pydantic-ai-slim",
    "triton_client.py": "tritonclient",
}


def installed() -> set[tuple[str, str]]:
    """By name and version, what development's environment and the clients' have."""
    files = [ROOT / "constraints.txt", *(ROOT / "tests" / "e2e" / "clients").glob("requirements*.txt")]
    pins = "\n".join(path.read_text() for path in files)
    packages = (ROOT / "tests/e2e/clients/node/package.json", ROOT / "examples/javascript/package.json")
    modules = [pair for path in packages for pair in json.loads(path.read_text())["dependencies"].items()]
    return {*re.findall(r"^([\w-]+)==(\S+)$", pins, re.MULTILINE), *modules}


def test_the_table_names_what_is_installed() -> None:
    section = (ROOT / "docs" / "apis.md").read_text().partition("## Clients that are tested")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| (\S+) \|[^|]*\| (.*?) \|$", section, re.MULTILINE)
    assert {"openai", "anthropic", "ollama", "@grpc/grpc-js", *PROGRAMS.values()} == {name for name, _, _ in rows}
    assert {(name, version) for name, version, _ in rows} <= installed()
    tests = {test for _, _, cell in rows for test in re.findall(r"`(\S+)`", cell)}
    assert len(tests) > 5
    assert all((ROOT / "tests" / "e2e" / Path(test).name).exists() for test in tests)


def test_every_program_uses_a_client_of_the_table() -> None:
    clients = ROOT / "tests" / "e2e" / "clients"
    programs = {path.name for path in clients.rglob("*_client.*") if path.suffix in (".py", ".cjs")}
    assert programs == PROGRAMS.keys()
