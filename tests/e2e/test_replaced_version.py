"""A checkpoint is replaced behind its name by the commands of docs/operations.md, one process each, while clients
stream: no answer is lost, cut or changed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import openai
import pytest

from tests.e2e.test_readme import BUNDLED, block, environment, path
from tests.fakes.ports import free_port, free_ports
from tests.fakes.waiting import HANG_S, wait_until

__all__ = ["path"]

OPERATIONS = "docs/operations.md"
NAME = "Qwen3-0.6B"
PROMPTS = [f"Count from {start} to {start + 40}." for start in range(3, 9)]


@contextmanager
def running(command: str, directory: Path, path: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=directory, env=environment(**path))
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def commands() -> list[str]:
    """The commands of the two blocks, with free ports, and then the gateway's command, which ends with its port."""
    lines = f"{block('quire worker ./Qwen3-0.6B --', OPERATIONS)}{block('quire worker ./Qwen3-0.6B-t', OPERATIONS)}"
    for documented, free in zip(("50061", "50062", "50071", "50072"), free_ports(4), strict=True):
        assert documented in lines
        lines = lines.replace(documented, str(free))
    router = f"127.0.0.1:{free_port()}"
    started = [line + f" --listen {router}" * line.startswith("quire router") for line in lines.splitlines()]
    return [*started, f"quire gateway --router {router} --port {free_port()}"]


class Load:
    """Clients that stream one prompt each, again and again."""

    def __init__(self, client: openai.OpenAI) -> None:
        self.client = client
        self.answers: dict[str, list[str]] = {prompt: [] for prompt in PROMPTS}
        self.errors: list[Exception] = []
        self._stop = Event()
        self._threads = [Thread(target=self._repeat, args=(prompt,)) for prompt in PROMPTS]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _repeat(self, prompt: str) -> None:
        while not self._stop.is_set() and not self.errors:
            try:
                self.answers[prompt].append(self._ask(prompt))
            except Exception as error:
                self.errors.append(error)

    def _ask(self, prompt: str) -> str:
        stream = self.client.chat.completions.create(
            messages=[{"role": "user", "content": prompt}], model=NAME, temperature=0, max_tokens=100, stream=True
        )
        chunks = list(stream)
        assert chunks[-1].choices[0].finish_reason in ("stop", "length")
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    def wait_for_more(self, times: int = 2) -> None:
        """Waits until each client got some more answers, or an error."""
        before = {prompt: len(answers) for prompt, answers in self.answers.items()}
        wait_until(
            lambda: bool(self.errors) or all(len(self.answers[prompt]) >= before[prompt] + times for prompt in PROMPTS),
            interval=0.05,
        )


def listed(client: openai.OpenAI) -> set[str]:
    """The names of the models. Empty while the parts start."""
    with suppress(openai.APIError):
        return {card.id for card in client.models.list()}
    return set()


def test_a_checkpoint_is_replaced_while_clients_stream(
    tmp_path: Path, commands: list[str], path: dict[str, str]
) -> None:
    # Both are the same model, so whichever answers, the answer is known.
    for name in (NAME, f"{NAME}-tuned"):
        shutil.copytree(BUNDLED, tmp_path / name)
    old_worker, old_scheduler, router, new_worker, new_scheduler, gateway = commands
    url = f"http://127.0.0.1:{gateway.split()[-1]}/v1"
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=HANG_S)
    with ExitStack() as parts:
        worker, scheduler, _, _ = (
            parts.enter_context(running(command, tmp_path, path))
            for command in (old_worker, old_scheduler, router, gateway)
        )
        wait_until(lambda: NAME in listed(client), interval=0.2)
        with Load(client) as load:
            load.wait_for_more()
            for command in (new_worker, new_scheduler):
                parts.enter_context(running(command, tmp_path, path))
            wait_until(lambda: f"{NAME}@v2" in listed(client), interval=0.2)
            load.wait_for_more()
            for part in (scheduler, worker):
                part.terminate()
                assert part.wait(HANG_S) == 0
            load.wait_for_more()
            names = listed(client)
    assert load.errors == []
    assert [len(set(answers)) for answers in load.answers.values()] == [1] * len(PROMPTS)
    assert names == {NAME, f"{NAME}@v2"}
