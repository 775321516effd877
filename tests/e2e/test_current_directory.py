"""No process of Quire runs a file of the current directory that has the name of a module."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shared.python_child import HOME
from tests.fakes.waiting import HANG_S

# Modules of the standard library that the parts import.
NAMES = ("json", "random", "types", "queue", "socket")
# What pip writes for the `quire` command. Python puts the program's own directory on the path, not the current one.
QUIRE = """
import sys
from quire.cli.main import main
if __name__ == "__main__":
    sys.exit(main())
"""
PROGRAM = """
from quire import LLM, SamplingParams
with LLM() as llm:
    print(llm.generate("Count from 3", SamplingParams(max_tokens=2))[0].outputs[0].token_ids)
"""
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Has a file for each of `NAMES`, which leaves its name in the file `run` and ends the process with status 0."""
    directory = tmp_path / "current"
    directory.mkdir()
    for name in NAMES:
        program = f"import os\nopen({str(tmp_path / 'run')!r}, 'a').write('{name} ')\nos._exit(0)\n"
        (directory / f"{name}.py").write_text(program)
    return directory


def quire(directory: Path, *words: str) -> tuple[str, ...]:
    program = directory.parent / "quire-command"
    program.write_text(QUIRE)
    return (sys.executable, str(program), *words)


def run(directory: Path, *command: str) -> str:
    """Its standard output. Fails where a file of the directory was run."""
    result = subprocess.run(command, cwd=directory, env=environment(), capture_output=True, text=True, timeout=HANG_S)
    check(directory)
    assert result.returncode == 0, result.stderr
    return result.stdout


def environment() -> dict[str, str]:
    """As a user's: Python searches the current directory, and finds this source tree."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"} | {"PYTHONPATH": str(HOME)}


def check(directory: Path) -> None:
    marker = directory.parent / "run"
    assert not marker.exists(), f"these files of the current directory were run: {marker.read_text()}"


def test_the_files_are_run_where_python_searches_the_current_directory(directory: Path) -> None:
    subprocess.run([sys.executable, "-c", "import json"], cwd=directory, env=environment(), check=True)

    assert (directory.parent / "run").exists()


def test_serve(directory: Path) -> None:
    command = quire(directory, "serve", "--port", "0")
    with subprocess.Popen(command, cwd=directory, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            is_served = any("is served" in line for line in process.stdout)
        finally:
            process.send_signal(signal.SIGTERM)
    check(directory)
    assert is_served


def test_llm(directory: Path) -> None:
    program = directory.parent / "program.py"
    program.write_text(PROGRAM)

    assert json.loads(run(directory, sys.executable, str(program)).splitlines()[-1])


def test_run_batch_with_the_processes_that_the_router_starts(directory: Path) -> None:
    question = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    bodies: list[dict[str, object]] = [
        question | {"chat_template": TEMPLATE},
        question | {"structured_outputs": {"regex": "[ab]{1,3}"}},
    ]
    requests = directory / "requests.jsonl"
    requests.write_text(
        "".join(
            json.dumps({"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n"
            for number, body in enumerate(bodies)
        )
    )

    answers = [
        json.loads(line)
        for line in run(directory, *quire(directory, "run-batch", "-i", requests.name, "-o", "-")).splitlines()
    ]
    assert [answer["response"]["status_code"] for answer in answers] == [200, 200]


def test_calibrate(directory: Path) -> None:
    limits = ("--max-num-seqs", "2", "--max-num-batched-tokens", "16", "--num-gpu-blocks-override", "16")
    run(directory, *quire(directory, "calibrate", "--output", "device.json", *limits))

    assert json.loads((directory / "device.json").read_text())["num_blocks"] == 16


def test_simulate_with_several_processes(directory: Path) -> None:
    device = {"step": {"base": 0.01, "per_token": 1e-5, "per_sequence": 1e-5, "per_kv_token": 0, "per_pair": 0}}
    sizes = {"num_blocks": 100, "block_size": 16, "max_model_len": 99, "max_num_seqs": 4, "max_num_batched_tokens": 64}
    (directory / "device.json").write_text(json.dumps(device | sizes))
    load = ("--poisson", "20", "--duration", "1", "--prompt-tokens", "20", "--output-tokens", "5")
    run(
        directory, *quire(directory, "simulate", "--device", "device.json", *load, "--workers", "2", "--processes", "2")
    )


def test_python_m_quire_leaves_the_current_directory_out(directory: Path) -> None:
    # Python itself imports `types` before it runs a module, unless something has imported it at start.
    (directory / "types.py").unlink()

    assert "usage: quire" in run(directory, sys.executable, "-m", "quire", "--help")
    assert "usage: quire serve" in run(directory, sys.executable, "-m", "quire", "serve", "--help")
