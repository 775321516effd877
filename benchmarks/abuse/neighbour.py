"""A well-behaved client that streams and checks one answer after another. It runs in its own process, so that the
attackers' work does not delay it.

`python -m benchmarks.abuse.neighbour HOST PORT` answers each line `START END` (seconds on the monotonic clock) with a
JSON report about this period. It exits at the end of its standard input.
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
# Number of short streams after each long one, so that an attack of seconds coincides with the start of some streams.
NUM_SHORT, SHORT_MAX_TOKENS = 8, 10
_PROMPT = list(range(20, 52))
_BODY = {
    "model": MODEL, "prompt": _PROMPT, "temperature": 0, "ignore_eos": True, "stream": True,
    "stream_options": {"include_usage": True},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Report:
    """`longest_gap`: seconds between two pieces of an answer. `longest_wait`: seconds for the first piece of an
    answer."""

    longest_gap: float
    longest_wait: float
    num_streams: int
    # Descriptions of streams that were incomplete or differed from the first one.
    faults: list[str]


@dataclass(slots=True)
class Diary:
    """Events that the client recorded, in seconds on the monotonic clock."""

    # Times of each request (with True) and of each piece of an answer (with False).
    seen: list[tuple[float, bool]] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    faults: list[tuple[float, str]] = field(default_factory=list)

    def report(self, start: float, end: float) -> Report:
        """Reports on the period from `start` to `end`. Gaps that overlap the period count, also gaps that are still
        open."""
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
    """Returns the text of one stream, or an error message in angle brackets if the stream is incomplete."""
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 22)
    try:
        writer.write(http_request("/v1/completions", json.dumps({**_BODY, "max_tokens": max_tokens}).encode()))
        seen.append((time.monotonic(), True))
        text, usage, others = "", None, b""
        async for line in reader:
            if not line.startswith(b"data: "):
                others += line
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
            return f"<{usage} instead of {max_tokens} tokens, after {text!r}: {_end(others)}>"
        return text
    except (OSError, ValueError) as error:
        return f"<{type(error).__name__}: {error}>"
    finally:
        writer.close()


def _end(answer: bytes) -> str:
    """Returns the status and the last line of an answer."""
    lines = answer.decode(errors="replace").splitlines()
    return " … ".join((lines[0], lines[-1])) if lines else "nothing"


async def keep_streaming(host: str, port: int, diary: Diary) -> None:
    lengths = (MAX_TOKENS, *(SHORT_MAX_TOKENS for _ in range(NUM_SHORT)))
    expected = {length: await stream_once(host, port, diary.seen, length) for length in set(lengths)}
    for length in cycle(lengths):
        text = await stream_once(host, port, diary.seen, length)
        now = time.monotonic()
        diary.ended.append(now)
        if text != expected[length]:
            diary.faults.append(
                (now, text[:200] if text.startswith("<") else "the text differs from the first stream's")
            )
            await asyncio.sleep(0.1)


class Neighbour:
    """Starts the client's process and reads its reports."""

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
