"""Broken models as those who start them meet them: one sentence, and the end."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import openai
import pytest

from tests.e2e.conftest import ROOT, wait_healthy
from tests.e2e.test_serve import failed_start
from tests.fakes.ports import free_port
from tests.fakes.waiting import HANG_S
from tests.unit.worker.test_broken_models import CASES, write_model


@pytest.mark.parametrize("name", ["layers", "tokenizer"])
def test_quire_serve_ends_in_one_sentence(tmp_path: Path, name: str) -> None:
    write_model(tmp_path)
    break_it, sentence = CASES[name]
    break_it(tmp_path)
    result = failed_start(str(tmp_path), "--port", "0")
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("quire serve: worker failed: ")
    assert sentence in last
    assert "Traceback" not in result.stderr


def test_quire_worker_ends_in_one_sentence(tmp_path: Path) -> None:
    write_model(tmp_path)
    break_it, sentence = CASES["LFS weights"]
    break_it(tmp_path)
    command = [
        sys.executable,
        "-m",
        "quire",
        "worker",
        str(tmp_path),
        "--listen",
        f"unix:{tmp_path}/w",
        "--log-level",
        "error",
    ]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("quire worker: ")
    assert sentence in line


def test_a_chat_template_that_cannot_be_parsed_is_told_without_v(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{% for message in messages %}\n{{ message")
    why = "The model's chat template cannot be parsed: line 2: unexpected end of template"
    port, log = free_port(), tmp_path / "log"
    command = [sys.executable, "-m", "quire.cli.main", "serve", str(tmp_path), "--port", str(port)]
    with log.open("w+") as file:
        process = subprocess.Popen([*command, "--served-model-name", "m"], stdout=file, stderr=file, cwd=ROOT)
        try:
            wait_healthy(process, port, file.fileno())
            client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
            completion = client.completions.create(model="m", prompt=[0, 1], max_tokens=3)
            assert completion.usage is not None
            assert completion.usage.prompt_tokens == 2
            with pytest.raises(openai.BadRequestError, match=re.escape(why)) as refusal:
                client.chat.completions.create(model="m", messages=[{"role": "user", "content": "a"}])
            assert refusal.value.code == "invalid_chat_template"
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(HANG_S) == 0
    assert f"router: {why}" in log.read_text()
