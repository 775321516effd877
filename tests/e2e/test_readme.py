"""The examples of README.md, CONTRIBUTING.md, docs/ and examples/README.md, read from them and run as they stand.

Commands use a `quire` of this source tree. Servers listen on another port than 8000, which may be taken.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import grpc
import pytest

from deploy.dashboards.alerts import ALERTS
from tests.e2e.conftest import ROOT, Server
from tests.e2e.grpcurl import grpcurl
from tests.fakes.ports import free_port
from tests.fakes.waiting import HANG_S
from tests.unit.worker.gguf.writing import Kind, write_gguf
from tests.unit.worker.tiny_encoders import save_encoder
from tests.unit.worker.tiny_models import save_model

ADDRESS = "127.0.0.1:8000"
BUNDLED = ROOT / "quire" / "models" / "quire-chat"
HERE = "tests/e2e/test_readme.py"
GRPC = "tests/e2e/test_grpc_docs.py"
REPLACED = "tests/e2e/test_replaced_version.py"

# By document, the beginning of each block that a test runs, and that test.
RUN: dict[str, dict[str, str]] = {
    "README.md": {
        "source .venv": f"{HERE}::test_the_environment_has_quire",
        "quire serve  ": f"{HERE}::test_serve",
        "curl -N ": f"{HERE}::test_curl",
        "from openai import OpenAI\n": f"{HERE}::test_http_clients",
        "from quire import LLM": f"{HERE}::test_an_llm",
    },
    "docs/clients.md": {
        "from openai import OpenAI\n": f"{HERE}::test_http_clients",
        "from anthropic import": f"{HERE}::test_http_clients",
        "from ollama import": f"{HERE}::test_http_clients",
        "grpcurl -plaintext -d ": f"{HERE}::test_grpcurl",
        "from quire import Client": f"{HERE}::test_the_python_client",
        "curl http": f"{HERE}::test_tools",
    },
    "docs/grpc-errors.md": {},
    "docs/grpc.md": {
        "from quire import Client, QuireError": f"{GRPC}::test_programs",
        "from quire import Client\n": f"{GRPC}::test_programs",
        "import grpc\nfrom": f"{GRPC}::test_programs",
        "import grpc\nimport json": f"{GRPC}::test_programs",
        """grpcurl -plaintext -d '{"text": """: f"{GRPC}::test_commands",
        """grpcurl -plaintext -d '{"chat": """: f"{GRPC}::test_commands",
        """grpcurl -plaintext -d '{"text_1": """: f"{GRPC}::test_commands",
        """grpcurl -plaintext -d '{"service": """: f"{GRPC}::test_commands",
        "grpcurl -plaintext -d '{}' ": f"{GRPC}::test_commands",
        """grpcurl -plaintext -d '{"name": """: f"{GRPC}::test_commands",
        "curl ": f"{GRPC}::test_curl",
        '{\n  "methodConfig"': f"{HERE}::test_the_retry_policy",
    },
    "docs/kserve.md": {"curl ": f"{HERE}::test_kserve"},
    "docs/offline.md": {
        "echo '{": f"{HERE}::test_a_batch",
        "from quire import LLM": f"{HERE}::test_more_of_an_llm",
    },
    "docs/operations.md": {
        "docker compose up --build -d --scale": "tests/e2e/test_compose.py::test_parts_come_and_go_under_load",
        "quire health": f"{HERE}::test_health",
        "quire serve --drain-delay": f"{HERE}::test_operations_of_a_server",
        "quire serve -v": f"{HERE}::test_operations_of_a_server",
        "quire estimate": f"{HERE}::test_estimate",
        "quire serve --config examples/quire.toml": f"{HERE}::test_operations_of_a_server",
        "quire serve --config examples/models.toml": f"{HERE}::test_operations_of_a_server",
        "quire serve ./Qwen3-0.6B ./bge": f"{HERE}::test_operations_of_a_server",
        "quire worker ./Qwen3-0.6B --": f"{REPLACED}::test_a_checkpoint_is_replaced_while_clients_stream",
        "quire worker ./Qwen3-0.6B-t": f"{REPLACED}::test_a_checkpoint_is_replaced_while_clients_stream",
        "ACL SETUSER": "tests/integration/shared/discovery/test_redis_access.py"
        "::test_the_acl_user_of_the_documentation_can_do_all_within_the_prefix_and_nothing_else",
    },
    "docs/simulator.md": {"quire calibrate": f"{HERE}::test_calibrate_and_simulate"},
    "docs/kubernetes.md": {
        "apiVersion: kustomize": "tests/unit/deploy/test_kubernetes.py::test_the_overlay_of_the_documentation_renders",
        "patches:": "tests/unit/deploy/test_kubernetes.py::test_the_overlay_of_the_documentation_renders",
        "environment:": "tests/unit/deploy/test_helm_values.py"
        "::test_the_values_of_the_documentation_lead_to_a_redis_of_ones_own",
    },
    "docs/troubleshooting.md": {
        "quire doctor  ": f"{HERE}::test_where_to_look_first",
    },
    "docs/tools.md": {"from quire import Client": f"{HERE}::test_tools"},
    "examples/README.md": {"quire serve": "tests/e2e/test_examples.py::test_it_runs"},
}  # fmt: skip

_ALERTS_TEST = "tests/unit/deploy/test_alerts.py::test_alerts_fire_when_they_should_and_are_silent_when_they_should_be"
RUN["docs/alerts.md"] = {alert.expression: _ALERTS_TEST for alert in ALERTS}
# The other blocks, with the reason why no test runs them and a line for each command in them that can be checked:
# `make -n TARGET` finds a target that is not there, --help a command that is not.
NOT_RUN: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "README.md": {
        "make demo": (
            "sets up .venv, and runs these tests; test_wheel.py runs quire demo",
            ("make -n demo", "make -n test"),
        ),
    },
    "CONTRIBUTING.md": {
        "make setup": (
            "sets up .venv, and runs these tests",
            (
                "make -n setup",
                "make -n fmt",
                "make -n check",
                "make -n test",
                "python -m pytest --collect-only tests/unit/scheduler",
                "python -m pytest --collect-only tests/unit/scheduler/test_core.py -k preempted",
            ),
        )
    },
    "docs/architecture.md": {" openai SDK": ("is a drawing", ())},
    "docs/clients.md": {
        "pip install anthropic": ("needs a package index; test_the_clients_are_those_of_the_examples checks it", ()),
        "quire serve BAAI/bge": ("downloads a model; test_classification.py ranks with a tiny one", ()),
    },
    "docs/grpc-errors.md": {"from google.rpc": ("needs grpcio-status, which Quire does not; it is parsed", ())},
    "docs/operations.md": {
        "QUIRE_REDIS=": (
            "the parts run until they are stopped; tests/e2e/test_discovery_in_redis.py runs all four with --redis",
            ("quire worker --help", "quire scheduler --help", "quire router --help", "quire gateway --help"),
        ),
        "make wheel": (
            "downloads torch; test_wheel.py builds it, installs it and runs quire demo, as make wheel-fresh does",
            ("make -n wheel", "quire demo --help"),
        ),
    },
    "docs/kubernetes.md": {
        "for part in gateway": (
            "needs a container engine; tests/unit/deploy/test_containers.py reads the Dockerfiles",
            (),
        ),
        "kubectl create namespace": (
            "needs a cluster; tests/e2e/test_kubernetes.py does the same with processes",
            ("quire chat --help", "quire bench serve --help"),
        ),
        "helm install": ("needs a cluster; tests/unit/deploy/test_helm.py renders the chart with these values", ()),
        "kubectl -n quire create secret": ("needs a cluster; tests/unit/deploy/test_kubernetes.py reads the names", ()),
    },
    "docs/testing.md": {
        "python -m benchmarks.gpu": (
            "needs a GPU",
            ("python -m benchmarks.gpu smoke --help", "python -m pytest --help", "make -n bench-gpu PYTHON=python"),
        ),
        "make test-steady": (
            "runs these tests; tests/steady/ reads it",
            ("make -n test-steady STEADY_RUNS=1 STEADY_TESTS=tests/e2e/test_recovery.py",),
        ),
        "python -m tests.virtual": (
            "takes an hour; tests/virtual/ runs some hundred seeds and plants bugs",
            ("python -m tests.virtual --help", "python -m tests.virtual.bugs --help", "make -n virtual-time"),
        ),
    },
}


def blocks(document: str) -> list[str]:
    """The contents of a document's code blocks."""
    return re.findall(r"^```\w*\n(.*?)^```$", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)


def block(beginning: str, document: str = "README.md") -> str:
    """The one code block of the document that begins so."""
    (found,) = (found for found in blocks(document) if found.startswith(beginning))
    return found


def example(beginning: str, server: Server, document: str = "README.md") -> str:
    """The block with this server's address in it."""
    found = block(beginning, document)
    assert ADDRESS in found
    return found.replace(ADDRESS, server.address)


def environment(**variables: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, **variables}


def output(*command: str, cwd: Path = ROOT, variables: Mapping[str, str] | None = None) -> str:
    own = environment(**(variables or {}))
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=HANG_S, env=own)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="session")
def path(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variable PATH with this source tree's `quire`, and these tests' `python`, in front."""
    directory = tmp_path_factory.mktemp("bin")
    for name, words in (("quire", "-m quire.cli.main"), ("python", "")):
        program = directory / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
        program.chmod(0o755)
    return {"PATH": f"{directory}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with small random models under the names that the documents use, and what their commands read."""
    directory = tmp_path_factory.mktemp("models")
    checkpoint = directory / "Qwen3-0.6B"
    vocab_size = json.loads((BUNDLED / "config.json").read_text())["vocab_size"]
    save_model(checkpoint, "Qwen3", vocab_size=vocab_size, max_position_embeddings=2048)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy2(BUNDLED / file, checkpoint)
    # A relative directory takes the place of the name on the hub.
    shutil.copytree(checkpoint, directory / "Qwen" / "Qwen3-0.6B")
    write_gguf(directory / "qwen3-0.6b-q8_0.gguf", checkpoint, Kind.Q8_0)
    encoder = directory / "bge-small-en-v1.5"
    encoder.mkdir()
    save_encoder(encoder, vocab_size=vocab_size)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy2(BUNDLED / file, encoder)
    (directory / "examples").mkdir()
    for file in ("quire.toml", "models.toml"):
        shutil.copy2(ROOT / "examples" / file, directory / "examples")
    return directory


@contextmanager
def served(command: str, directory: Path, path: Mapping[str, str]) -> Iterator[str]:
    """A line of the shell that serves, until the block ends. Yields the URL once it says that Ctrl-C stops it, and
    presses Ctrl-C."""
    port = str(free_port())
    # A file's port comes after the environment's.
    own = environment(QUIRE_PORT=port, **path)
    with (
        (directory / "errors.log").open("w+") as errors,
        subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=directory, env=own, stdout=subprocess.PIPE, stderr=errors, text=True,
        ) as process,
    ):  # fmt: skip
        try:
            assert process.stdout is not None
            told = any(line == "Ctrl-C stops it.\n" for line in process.stdout)
            assert told, (directory / "errors.log").read_text()
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGINT)
            status = process.wait(HANG_S)
    assert status == 0


def test_every_block_is_run_or_has_a_reason() -> None:
    paths = [*ROOT.glob("*.md"), ROOT / "examples" / "README.md", *(ROOT / "docs").glob("*.md")]
    documents = [str(path.relative_to(ROOT)) for path in paths]
    for document in documents:
        known = [*RUN.get(document, {}), *NOT_RUN.get(document, {})]
        for found in blocks(document):
            matching = [beginning for beginning in known if found.startswith(beginning)]
            assert len(matching) == 1, f"{document}: {len(matching)} of RUN and NOT_RUN are for this block:\n{found}"
            known.remove(matching[0])
        assert known == [], f"{document} has no such blocks"
    assert {*RUN, *NOT_RUN} <= set(documents)
    for test in (test for tests in RUN.values() for test in tests.values()):
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(), test


@pytest.mark.parametrize(
    "command", [line for reasons in NOT_RUN.values() for _, lines in reasons.values() for line in lines]
)
def test_commands_that_are_not_run_are_there(command: str, path: dict[str, str]) -> None:
    output("bash", "-c", command, variables=path)


def test_python_that_is_not_run_is_python() -> None:
    ast.parse(block("from google.rpc", "docs/grpc-errors.md"))


def test_the_promises_name_their_tests() -> None:
    def promises(document: str) -> set[str]:
        """Rows of its table, with links as they are in docs/."""
        _, _, rest = (ROOT / document).read_text().partition("\n| promise | shown by |\n|---|---|\n")
        table, _, _ = rest.partition("\n\n")
        return set(table.replace("](docs/", "](").splitlines())

    known = promises("docs/testing.md")
    assert promises("README.md") < known
    for row in known:
        named = re.findall(r"`(tests/[^`]*)`", row)
        assert named, row
        assert all((ROOT / path).exists() for path in named), row


def test_the_environment_has_quire(tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(sys.prefix)
    script = block("source .venv") + "quire version"
    assert re.match(r"(quire )?\d+\.\d+", output("bash", "-ec", script, cwd=tmp_path))


def test_the_clients_are_those_of_the_examples() -> None:
    names = set(shlex.split(block("pip install anthropic", "docs/clients.md"))[2:])
    imported = set(re.findall(r"^from (\w+) import", (ROOT / "docs" / "clients.md").read_text(), re.MULTILINE))
    assert names == imported - {"quire"}
    assert all(find_spec(name) for name in names)


OPERATIONS = [line for line in map(str.strip, blocks("docs/operations.md")) if line.startswith("quire serve")]


def is_part_of_another(line: str) -> bool:
    """Whether a longer command that is run begins with this one, models included."""
    words = line.partition("#")[0].split()
    others = [other.partition("#")[0].split() for other in (*block("quire serve  ").splitlines(), *OPERATIONS)]
    return len(words) > 2 and any(len(other) > len(words) and other[: len(words)] == words for other in others)


SERVE = [line for line in block("quire serve  ").splitlines() if " serve" in line and not is_part_of_another(line)]


@pytest.mark.parametrize("line", SERVE)
def test_serve(line: str, models: Path, path: dict[str, str]) -> None:
    with served(line.partition("#")[0], models, path) as url:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=HANG_S) as answer:
            assert json.load(answer)["data"]
        if line.split()[2:3] == ["#"]:
            (chat,) = (line for line in block("quire serve  ").splitlines() if line.startswith("quire chat "))
            question = ["bash", "-c", f"echo 'What is 7 plus 5?' | {chat.partition('#')[0]} --url {url}"]
            assert "12" in output(*question, variables=path)


@pytest.mark.parametrize("command", OPERATIONS)
def test_operations_of_a_server(command: str, models: Path, path: dict[str, str]) -> None:
    logs = [models / "quire.log", models / "access.jsonl"]
    for log in logs:
        log.unlink(missing_ok=True)
    # tests/e2e/test_drain.py shows that it waits.
    with served(command.replace("--drain-delay 5", "--drain-delay 1"), models, path) as url:
        urllib.request.urlopen(f"{url}/v1/models", timeout=HANG_S).close()
    if "2>" in command:
        entries = [line.partition(" | ")[2] for line in logs[0].read_text().splitlines() if " | {" in line]
        assert {"level", "service", "message"} <= json.loads(entries[0]).keys()
        assert "/v1/models" in logs[1].read_text()


def test_where_to_look_first(models: Path, path: dict[str, str]) -> None:
    lines = block("quire doctor  ", "docs/troubleshooting.md").splitlines()
    doctor, serve, curl = (line.partition("#")[0].strip() for line in lines if line)
    output("bash", "-c", f"{doctor} --port 0", variables=path)
    with served(serve, models, path) as url:
        assert "vllm:num_requests_running" in output("bash", "-c", curl.replace(f"http://{ADDRESS}", url))
    assert " | " in (models / "errors.log").read_text()


def test_health(server: Server, path: dict[str, str]) -> None:
    output("bash", "-c", example("quire health", server, "docs/operations.md"), variables=path)


def test_estimate(models: Path, path: dict[str, str]) -> None:
    text = output("bash", "-c", block("quire estimate", "docs/operations.md"), cwd=models, variables=path)
    assert text.startswith("Qwen3ForCausalLM")


def test_calibrate_and_simulate(tmp_path: Path, models: Path, path: dict[str, str]) -> None:
    """Of a model and for times that are small."""
    calibrate, _, simulate = block("quire calibrate", "docs/simulator.md").partition("\n")
    model = shlex.quote(str(models / "Qwen3-0.6B"))
    small = {"QUIRE_MAX_NUM_SEQS": "2", "QUIRE_MAX_NUM_BATCHED_TOKENS": "16", "QUIRE_NUM_GPU_BLOCKS_OVERRIDE": "128"}
    output("bash", "-ec", calibrate.replace("MODEL", model), cwd=tmp_path, variables=path | small)

    assert json.loads((tmp_path / "device.json").read_text())["num_blocks"] == 128
    # Another device, so that the simulation does not depend on how fast this machine is.
    device = {"step": {"base": 0.001, "per_token": 1e-6, "per_sequence": 1e-6, "per_kv_token": 0, "per_pair": 0}}
    sizes = {"num_blocks": 9999, "block_size": 16, "max_model_len": 2048}
    steps = {"max_num_seqs": 64, "max_num_batched_tokens": 512}
    (tmp_path / "device.json").write_text(json.dumps(device | sizes | steps))
    rows = [f"2023-11-16 18:17:0{second}.0000000,{100 * second},10\n" for second in range(1, 9)]
    (tmp_path / "trace.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
    output("bash", "-ec", simulate, cwd=tmp_path, variables=path | {"QUIRE_DURATION": "20"})
    assert {"report.html", "report.json"} <= {file.name for file in (tmp_path / "report").iterdir()}


def test_kserve(server: Server) -> None:
    assert json.loads(output("sh", "-c", example("curl ", server, "docs/kserve.md")))["text_output"]


def test_the_retry_policy(server: Server) -> None:
    """grpc refuses a policy that it cannot read."""
    policy = json.dumps(json.loads(block('{\n  "methodConfig"', "docs/grpc.md")))
    with grpc.insecure_channel(server.address, options=[("grpc.service_config", policy)]) as channel:
        grpc.channel_ready_future(channel).result(HANG_S)


def test_curl(server: Server) -> None:
    assert output("sh", "-c", example("curl -N ", server)).endswith("data: [DONE]\n\n")


def test_tools(server: Server) -> None:
    curl = example("curl http", server, "docs/clients.md")
    answer = json.loads(output("sh", "-c", "curl -s" + curl.removeprefix("curl")))
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"])["city"] in ("Bonn", "Rome")
    assert output(sys.executable, "-c", example("from quire import", server, "docs/tools.md")).startswith(
        "get_weather {"
    )


@pytest.mark.parametrize(
    ("document", "client"),
    [
        ("README.md", "openai import OpenAI\n"),
        ("docs/clients.md", "openai import OpenAI\n"),
        ("docs/clients.md", "anthropic import"),
        ("docs/clients.md", "ollama import"),
    ],
)
def test_http_clients(server: Server, document: str, client: str) -> None:
    assert output(sys.executable, "-c", example(f"from {client}", server, document)).strip()


def test_the_python_client(server: Server) -> None:
    # "Count from 3 to 9."
    text = output(sys.executable, "-c", example("from quire import Client", server, "docs/clients.md"))
    assert len(re.findall(r"\d+", text)) > 3


def test_grpcurl(server: Server) -> None:
    events = grpcurl(example("grpcurl -plaintext -d ", server, "docs/clients.md"))
    assert "".join(event["delta"].get("text", "") for event in events[:-1])
    assert events[-1]["final"]["usage"]["completionTokens"] > 0


def test_a_batch(tmp_path: Path, path: dict[str, str]) -> None:
    output("sh", "-ec", block("echo '{", "docs/offline.md"), cwd=tmp_path, variables=path)
    (line,) = (tmp_path / "answers.jsonl").read_text().splitlines()
    (choice,) = json.loads(line)["response"]["body"]["choices"]
    assert "12" in choice["message"]["content"]


def test_an_llm() -> None:
    first, second, third, fourth = output(sys.executable, "-c", block("from quire import LLM")).splitlines()
    assert first.startswith("Count from 3")
    assert second.startswith("Count from 7")
    assert third
    score, size = fourth.split()
    assert float(score) == pytest.approx(1, abs=1e-5)
    assert int(size) > 1


def test_more_of_an_llm() -> None:
    *prompt, number, chat, size, scores = output(
        sys.executable, "-c", block("from quire import LLM", "docs/offline.md")
    ).splitlines()
    assert [line.split()[0] for line in prompt][-2:] == ["9", "."]
    assert all(re.search(r" -\d\S* \d+$", line) for line in prompt)
    assert re.fullmatch("[0-9]{3}", number)
    assert chat.strip() == "3 is 5."
    assert int(size) > 1
    assert json.loads(scores) == sorted(json.loads(scores), reverse=True)
