"""`docker compose up --scale`, rolling restarts and the profile models, run as processes: parts come and go under load,
and no answer fails or differs."""

from __future__ import annotations

import re
import threading
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import cycle
from typing import Self

import openai

from tests.e2e.containers import ROOT, Container, running
from tests.fakes.redis_server import needs_redis
from tests.fakes.waiting import HANG_S, wait_until

NUM_CLIENTS = 4
# Routers send equal prompts to the same scheduler. With this many different ones, every scheduler gets some.
PROMPTS = [f"Count from {start} to {start + 30}." for start in range(24)]
# Seconds between two questions of a client, so that parts that start get some of the processor.
PAUSE_S = 0.5
# --scale SERVICE=NUMBER, one after the other: those of the documentation's command, then back to one of each.
(COMMAND,) = re.findall(
    r"^docker compose up .*--scale .*$", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE
)
UP = [(service, int(number)) for service, number in re.findall(r"--scale (\w+)=(\d+)", COMMAND)]
STEPS = (*UP, *((service, 1) for service, _ in reversed(UP)))
# A counter of each part's own metrics that grows with its work.
WORK = {
    "router": "vllm:request_success_total",
    "scheduler": "vllm:prefix_cache_queries_total",
    "worker": "quire:worker_steps_total",
}


class Load:
    """Clients that ask one question after another, and compare each answer with the first one to the same question."""

    def __init__(self, gateway: Container) -> None:
        self.use(gateway)
        self._pool = ThreadPoolExecutor(NUM_CLIENTS)
        self._expected = dict(zip(PROMPTS, self._pool.map(self.ask, PROMPTS), strict=True))
        self._stop = threading.Event()
        self.num_answers = 0
        self.wrong: list[str] = []
        self._lock = threading.Lock()
        self._clients = [self._pool.submit(self._run, PROMPTS[first::NUM_CLIENTS]) for first in range(NUM_CLIENTS)]

    def use(self, gateway: Container) -> None:
        """Sends new requests to this gateway, as soon as it is healthy. Streams of the last one go on there, as behind
        a Service of Kubernetes."""
        url = f"http://{gateway.address}:8000"
        wait_healthy(url)
        self.client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=HANG_S)

    def ask(self, prompt: str, model: str = "quire-chat") -> str:
        stream = self.client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": prompt}],
            temperature=0,
            max_tokens=80,
            stream=True,
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    def _run(self, prompts: Sequence[str]) -> None:
        for prompt in cycle(prompts):
            if self._stop.wait(PAUSE_S):
                return
            try:
                answer = self.ask(prompt)
                wrong = "" if answer == self._expected[prompt] else f"{prompt}: {answer!r}"
            except openai.APIError as error:
                wrong = f"{prompt}: {error!r}"
            with self._lock:
                self.num_answers += 1
                if wrong:
                    self.wrong.append(wrong)

    def ask_more(self) -> None:
        """Waits for two more answers per client."""
        target = self.num_answers + 2 * NUM_CLIENTS
        wait_until(lambda: self.num_answers >= target, 0.05)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown()


def work(container: Container) -> float:
    """How much the container has done; 0 as long as it does not answer."""
    with suppress(OSError):
        with urllib.request.urlopen(f"http://{container.address}:9000/metrics", timeout=HANG_S) as response:
            lines = response.read().decode().splitlines()
        counter = WORK[container.service.removesuffix("-second")]
        return sum(float(line.split()[-1]) for line in lines if line.startswith(counter))
    return 0.0


def wait_used(containers: list[Container]) -> None:
    """Waits until each container has worked since the call."""
    before = {id(one): work(one) for one in containers}
    for one in containers:

        def is_used(one: Container = one) -> bool:
            assert one.process.poll() is None, one.log.read_text()
            return work(one) > before[id(one)]

        wait_until(is_used, 0.1)


def wait_healthy(url: str) -> None:
    def is_healthy() -> bool:
        with suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=HANG_S) as response:
            return bool(response.status == 200)
        return False

    wait_until(is_healthy, 0.1)


@needs_redis
def test_parts_come_and_go_under_load() -> None:
    """Added parts are used, and removed ones end what they do. Then every part is replaced."""
    with running(dict.fromkeys(("gateway", "router", "scheduler", "worker", "redis"), 1)) as project:
        (gateway,) = project.containers["gateway"]
        with Load(gateway) as load:
            for service, number in STEPS:
                started = time.monotonic()
                containers = project.scale(service, number)
                scaled = time.monotonic()
                wait_used(containers)
                print(f"{service}={number}: {scaled - started:.1f} s, used after {time.monotonic() - scaled:.1f} s")
                load.ask_more()
            project.scale("worker", 2)  # so that a second scheduler has work beside the first one
            for service in ("worker", "scheduler", "router", "gateway"):
                started = time.monotonic()
                old, *_, new = project.scale(service, len(project.containers[service]) + 1)
                if service == "gateway":
                    load.use(new)
                else:
                    wait_used([new])
                project.remove(old)
                print(f"{service} replaced in {time.monotonic() - started:.1f} s")
                load.ask_more()
            # The profile models: a second model, with parts of its own.
            second = [*project.scale("worker-second", 1), *project.scale("scheduler-second", 1)]
            wait_until(lambda: "second" in {model.id for model in load.client.models.list()}, 0.1)
            before = [work(one) for one in second]
            assert load.ask(PROMPTS[0], "second")
            assert all(work(one) > count for one, count in zip(second, before, strict=True))
            load.ask_more()
        assert load.wrong == [], f"of {load.num_answers} answers"
        print(f"{load.num_answers} answers, all right")
