"""A command line of vLLM's starts Quire, and what does not go together stops it with a sentence."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import openai
import pytest

from tests.e2e.conftest import ROOT
from tests.fakes.ports import free_port
from tests.fakes.waiting import HANG_S
from tests.unit.cli.processes import is_running

MODEL = ROOT / "quire/models/quire-chat"
QUIRE = (sys.executable, "-m", "quire")
LINE = """
--model {model} --tensor-parallel-size 1 --gpu-memory-utilization 0.90 --max-num-batched-tokens 8192
--max-num-seqs 256 --max_model_len 512 --block-size 16 --swap-space 0.01 --preemption-mode swap --enforce-eager
--dtype auto --enable-prefix-caching --no-enable-chunked-prefill --generation-config vllm --num-scheduler-steps 1
--served-model-name a b --host 127.0.0.1 --port {port} --api-key k1 k2 --disable-log-requests --seed 0
"""


def test_a_line_of_vllms_starts_and_answers_under_every_name_and_key() -> None:
    port = free_port()
    words = shlex.split(LINE.format(model=shlex.quote(str(MODEL)), port=port))
    process = subprocess.Popen(
        (*QUIRE, "serve", *words), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip())
            if line == "Ctrl-C stops it.\n":
                break
        assert is_running(process.pid), lines
        for name, key in (("a", "k1"), ("b", "k2")):
            with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0) as client:
                # Longer than the default chunk would be if prompts were cut: 300 tokens and more.
                question = "What is 7 plus 5? " * 30
                assert client.completions.create(model=name, prompt=question, max_tokens=3).usage
    finally:
        process.terminate()
        process.communicate(timeout=HANG_S)
    assert any(line.startswith("worker: # CPU blocks: ") and ", # swap blocks: " in line for line in lines)
    assert any(line.startswith("--seed changes nothing: ") for line in lines)
    assert not any(line.endswith("# swap blocks: 0") for line in lines)


@pytest.mark.parametrize(
    ("device", "status", "sentence"),
    [
        ("cpu", 2, "--preemption-mode is swap, but there is no swap space; set --swap-space, or use auto"),
        ("auto", 1, "scheduler failed: --preemption-mode is swap, but the worker has no swap space; set --swap-space, "
         "or use auto"),
    ],
)  # fmt: skip
def test_swapping_without_space_stops_the_start(device: str, status: int, sentence: str) -> None:
    """With `auto`, the worker finds out that there is no GPU, and with it that it has no swap space by default."""
    if device == "auto" and Path("/dev/nvidiactl").exists():
        pytest.skip("there is a GPU, and so swap space")
    command = (*QUIRE, "serve", "--port", "0", "--preemption-mode", "swap", "--device", device)
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S)

    assert (result.returncode, result.stderr.splitlines()[-1]) == (status, f"quire serve: {sentence}")
