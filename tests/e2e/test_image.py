"""The image of the whole stack, run as a process: `docker run -v DIRECTORY:/model quire --model /model` serves."""

from __future__ import annotations

import json
import re
import urllib.request
from contextlib import suppress
from pathlib import Path

import openai

from tests.e2e.containers import ROOT, Service, dockerfile, running
from tests.fakes.waiting import HANG_S, wait_until
from tests.unit.worker.tiny_models import save_model


def test_one_command_serves_a_directory(tmp_path: Path) -> None:
    model = tmp_path / "model"
    bundled = ROOT / "quire" / "models" / "quire-chat"
    vocabulary = json.loads((bundled / "config.json").read_text())["vocab_size"]
    save_model(model, "Qwen3", vocab_size=vocabulary, max_position_embeddings=2048)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).write_bytes((bundled / name).read_bytes())
    # The line in the Dockerfile, with this directory in place of the one in the container.
    (line,) = re.findall(
        r"^# docker run --gpus all -v /path:/model -p 8000:8000 quire (.+)$", dockerfile("quire"), re.M
    )
    options = [str(model) if word == "/model" else word for word in line.replace("8192", "512").split()]
    with running({"quire": 1}, {"quire": Service("quire", tuple(options), {}, grace_s=30)}) as project:
        (container,) = project.containers["quire"]
        url = f"http://{container.address}:8000"

        def is_healthy() -> bool:
            assert container.process.poll() is None, container.log.read_text()
            with suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=HANG_S) as response:
                return bool(response.status == 200)
            return False

        wait_until(is_healthy, 0.1)
        (check,) = re.findall(r"^HEALTHCHECK .* CMD (.+)$", dockerfile("quire"), re.MULTILINE)
        assert json.loads(check) == ["quire", "health", "http://localhost:8000"]
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        served = client.models.list().data[0]
        answer = client.completions.create(model=served.id, prompt="Hello", max_tokens=5)
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 5
