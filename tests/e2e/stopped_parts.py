"""Stops a part (SIGSTOP) for longer than its peers wait for it, and lets it go on."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Semaphore

import openai

from quire.client import Client
from tests.e2e.conftest import Server, serving
from tests.e2e.under_way import metric, pid_of

PROMPTS = [f"Count from {start} to 60." for start in range(1, 7)]
MAX_TOKENS = 400
# A worker gives a scheduler up after 10 s without heartbeats, a router gives it up after 5 s without a load report.
# Requests wait 30 s for a scheduler and 60 s for a worker.
STOPPED_S = {"worker": 40.0, "scheduler": 18.0}


class Answers:
    """Greedy answers to all prompts at once: half of them streamed over HTTP, half over gRPC, and a whole one."""

    def __init__(self, server: Server, threads: ThreadPoolExecutor) -> None:
        self._server = server
        # Released once by each stream that has begun.
        self._begun = Semaphore(0)
        self._http = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=180)
        # It retries what has not begun, such as a connection that a busy machine is slow to accept.
        self._grpc = Client(server.address)
        calls = [(self._over_http if index % 2 else self._over_grpc, prompt) for index, prompt in enumerate(PROMPTS)]
        self.asked: list[Future[str]] = [threads.submit(call, prompt) for call, prompt in calls]
        self.asked.append(threads.submit(self._whole, PROMPTS[0]))

    def wait_begun(self) -> None:
        for _ in PROMPTS:
            assert self._begun.acquire(timeout=60), [answer.exception() for answer in self.asked if answer.done()]

    def texts(self) -> list[str]:
        texts = [future.result() for future in self.asked]
        self._grpc.close()
        return texts

    def _over_http(self, prompt: str) -> str:
        stream = self._http.chat.completions.create(
            model=self._server.model, messages=[{"role": "user", "content": prompt}], temperature=0,
            max_tokens=MAX_TOKENS, stream=True, extra_body={"ignore_eos": True},
        )  # fmt: skip
        pieces = []
        for event in stream:
            pieces.append(event.choices[0].delta.content or "")
            if len(pieces) == 5:
                self._begun.release()
        return "".join(pieces)

    def _over_grpc(self, prompt: str) -> str:
        pieces = []
        messages = [{"role": "user", "content": prompt}]
        for delta in self._grpc.stream_chat(messages, temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True):
            pieces.append(delta.text)
            if len(pieces) == 5:
                self._begun.release()
        return "".join(pieces)

    def _whole(self, prompt: str) -> str:
        answer = self._http.chat.completions.create(
            model=self._server.model, messages=[{"role": "user", "content": prompt}], temperature=0,
            max_tokens=MAX_TOKENS, extra_body={"ignore_eos": True},
        )  # fmt: skip
        return answer.choices[0].message.content or ""


def stop_parts_under_load() -> None:
    """Stops the worker of a real stack, then its scheduler. Raises AssertionError if an answer is lost or changed."""
    with (
        serving("--max-num-batched-tokens", "64", "-v", model="quire-chat") as stack,
        ThreadPoolExecutor(len(PROMPTS) + 1) as threads,
    ):
        undisturbed = Answers(stack, threads).texts()
        for part, seconds in STOPPED_S.items():
            resubmissions = metric(stack, "quire:resubmissions_total")
            disturbed = Answers(stack, threads)
            disturbed.wait_begun()
            stopped = pid_of(part, stack)
            os.kill(stopped, signal.SIGSTOP)
            try:
                assert not any(answer.done() for answer in disturbed.asked), "these were to be under way"
                time.sleep(seconds)
            finally:
                os.kill(stopped, signal.SIGCONT)
            assert disturbed.texts() == undisturbed, part
            assert pid_of(part, stack) == stopped, f"the stopped {part} was to go on, not to be replaced"
            # Answers wait at the scheduler for its worker, and leave a scheduler that says nothing.
            num_resubmitted = metric(stack, "quire:resubmissions_total") - resubmissions
            assert (num_resubmitted > 0) == (part == "scheduler")
