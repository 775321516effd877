"""A well-behaved client: one stream after another, each of them checked. It has a process of its own, so that the
attackers' work does not hold it up.

`python -m benchmarks.abuse.neighbour HOST PORT` answers each line `START END` (seconds on the monotonic clock) with a
line of JSON about what happened in between, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from itertools import cycle, pairwise

from benchmarks.abuse.attack import MODEL, http_request
from shared.python_child import child_environment, python_command

MAX_TOKENS = 600
# After each long stream come so many short ones: an attack of seconds is to meet some of their beginnings.
NUM_SHORT, SHORT_MAX_TOKENS = 8, 10
_PROMPT = list(range(20, 52))
_BODY = {
    "model": MODEL, "prompt": _PROMPT, "temperature": 0, "ignore_eos": True, "stream": True,
    "stream_options": {"include_usage": True},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Report:
    """In seconds, `longest_gap` between two pieces of an answer, and `longest_wait` for the first piece of one."""

    longest_gap: float
    longest_wait: float
    num_streams: int
    # What was wrong with streams that ended, and were not whole and the same as the first one.
    faults: list[str]


@dataclass(slots=True)
class Diary:
    """What the client saw, in seconds on the monotonic clock."""

    # Of each request, with True, and of each piece.
    seen: list[tuple[float, bool]] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    faults: list[tuple[float, str]] = field(default_factory=list)

    def report(self, start: float, end: float) -> Report:
        """Of the time between; of gaps, those that ended in it or are still open."""
        longest = {False: 0.0, True: 0.0}
        for (before, is_request), (after, _) in pairwise([*self.seen, (time.monotonic(), False)]):
            if start < after and before < end:
                longest[is_request] = max(longest[is_request], after - before)
        return Report(
            longest[False],
            longest[True],
            sum(start <= moment <= end for moment in self.ended),
            [what for moment, what in self.faults if start <= moment <= end],
        )


async def stream_once(host: str, port: int, seen: list[tuple[float, bool]], max_tokens: int = MAX_TOKENS) -> str:
    """The text of one stream, or a sentence in angle brackets where it broke off."""
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 22)
    try:
        writer.write(http_request("/v1/completions", json.dumps({**_BODY, "max_tokens": max_tokens}).encode()))
        seen.append((time.monotonic(), True))
        text, usage = "", None
        async for line in reader:
            if not line.startswith(b"data: "):
                continue
            seen.append((time.monotonic(), False))
            if line.startswith(b"data: [DONE]"):
                break
            event = json.loads(line[6:])
            if "error" in event:
                return f"<{event['error']['message']}>"
            usage = event.get("usage") or usage
            text += "".join(choice["text"] for choice in event["choices"])
        if usage is None or usage["completion_tokens"] != max_tokens:
            return f"<{usage} in place of {max_tokens} tokens>"
        return text
    except (OSError, ValueError) as error:
        return f"<{type(error).__name__}: {error}>"
    finally:
        writer.close()


async def keep_streaming(host: str, port: int, diary: Diary) -> None:
    lengths = (MAX_TOKENS, *(SHORT_MAX_TOKENS for _ in range(NUM_SHORT)))
    expected = {length: await stream_once(host, port, diary.seen, length) for length in set(lengths)}
    for length in cycle(lengths):
        text = await stream_once(host, port, diary.seen, length)
        now = time.monotonic()
        diary.ended.append(now)
        if text != expected[length]:
            diary.faults.append((now, text[:200] if text.startswith("<") else "another text than the first stream's"))
            await asyncio.sleep(0.1)


class Neighbour:
    """The process, as its parent sees it."""

    def __init__(self, host: str, port: int) -> None:
        self._process = subprocess.Popen(
            python_command("benchmarks.abuse.neighbour", host, str(port)),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=child_environment(), text=True,
        )  # fmt: skip

    async def report(self, start: float, end: float) -> Report:
        return await asyncio.to_thread(self._ask, start, end)

    def _ask(self, start: float, end: float) -> Report:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(start, end, file=self._process.stdin, flush=True)
        return Report(**json.loads(self._process.stdout.readline()))

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


async def main(host: str, port: int) -> None:
    diary = Diary()
    streaming = asyncio.create_task(keep_streaming(host, port, diary))
    while line := await asyncio.to_thread(sys.stdin.readline):
        start, end = map(float, line.split())
        print(json.dumps(asdict(diary.report(start, end))), flush=True)
    streaming.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
