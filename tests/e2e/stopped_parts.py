"""Stops a part (SIGSTOP) for longer than its peers wait for it, and then continues it."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import openai

from quire.client import Client
from tests.e2e.conftest import Server, serving
from tests.e2e.parts import metric, num_sequences, pid_of
from tests.e2e.worker_script import go_on, standing_still, stop_at, wait_stopped
from tests.fakes.waiting import HANG_S, wait_until

PROMPTS = [f"Count from {start} to 60." for start in range(1, 7)]
MAX_TOKENS = 400
# A worker drops its scheduler after 10 s without heartbeats. A router drops a scheduler after 5 s without a load
# report. Requests wait longer than that for both, however slow the machine is.
WAITS = [f"{name}={HANG_S}" for name in ("--worker-timeout", "--scheduler-wait")]
STOPPED_S = {"worker": 40.0, "scheduler": 18.0}


class Answers:
    """Greedy answers to all prompts, requested in parallel: half streamed over HTTP, half over gRPC, and one whole."""

    def __init__(self, server: Server, threads: ThreadPoolExecutor) -> None:
        self._server = server
        self._http = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=HANG_S)
        # This client retries calls that have not begun, for example if a busy machine is slow to accept a connection.
        self._grpc = Client(server.address)
        calls = [(self._over_http if index % 2 else self._over_grpc, prompt) for index, prompt in enumerate(PROMPTS)]
        self.asked: list[Future[Any]] = [threads.submit(call, prompt) for call, prompt in calls]
        self.asked.append(threads.submit(self._whole, PROMPTS[0]))

    def texts(self) -> list[str]:
        texts = [future.result() for future in self.asked]
        self._grpc.close()
        return texts

    def _over_http(self, prompt: str) -> str:
        stream = self._http.chat.completions.create(
            model=self._server.model, messages=[{"role": "user", "content": prompt}], temperature=0,
            max_tokens=MAX_TOKENS, stream=True, extra_body={"ignore_eos": True},
        )  # fmt: skip
        return "".join(event.choices[0].delta.content or "" for event in stream)

    def _over_grpc(self, prompt: str) -> str:
        messages = [{"role": "user", "content": prompt}]
        stream = self._grpc.stream_chat(messages, temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)
        return "".join(delta.text for delta in stream)

    def _whole(self, prompt: str) -> str:
        answer = self._http.chat.completions.create(
            model=self._server.model, messages=[{"role": "user", "content": prompt}], temperature=0,
            max_tokens=MAX_TOKENS, extra_body={"ignore_eos": True},
        )  # fmt: skip
        return answer.choices[0].message.content or ""


def stop_parts_under_load() -> None:
    """Stops the worker of a real stack, then its scheduler. Raises AssertionError if an answer is lost or changed."""
    with (
        serving("--max-num-batched-tokens", "64", *WAITS, "-v", model="quire-chat") as stack,
        ThreadPoolExecutor(len(PROMPTS) + 1) as threads,
    ):
        undisturbed = Answers(stack, threads).texts()
        for part, seconds in STOPPED_S.items():
            resubmissions = metric(stack, "quire:resubmissions_total")
            # Send all requests while the worker is stopped. The worker stops again when each answer has some tokens.
            worker = pid_of("worker", stack)
            stack.script.give(worker, stop_at(num_sequences=len(PROMPTS) + 1, num_tokens=5))
            with standing_still(worker):
                disturbed = Answers(stack, threads)
                wait_until(lambda: num_sequences(stack) == len(PROMPTS) + 1)
            wait_stopped(worker, disturbed.asked)
            stopped = pid_of(part, stack)
            with standing_still(stopped):
                if part != "worker":
                    go_on(worker)
                # This wait must exceed the time limits above, and no event marks its end.
                time.sleep(seconds)
            assert disturbed.texts() == undisturbed, part
            assert pid_of(part, stack) == stopped, f"the stopped {part} was replaced instead of continued"
            # Requests wait in the scheduler for a stopped worker. The router moves them away from a stopped scheduler.
            num_resubmitted = metric(stack, "quire:resubmissions_total") - resubmissions
            assert (num_resubmitted > 0) == (part == "scheduler")
