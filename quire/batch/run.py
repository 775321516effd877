"""Runs the requests of a batch concurrently and writes the answers in input order, with bounded memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from quire.batch.format import (
    Answer,
    BatchRequest,
    OutputLine,
    RequestError,
    answer_line,
    custom_id_of,
    error_line,
    parse_request,
)
from quire.batch.lines import Line
from quire.batch.output import BatchError, BatchOutput

# Maximum number of lines in memory, as a multiple of max_concurrency. A finished answer waits in memory until all
# earlier answers are written.
WINDOW = 8
# While the lines and answers in memory have at least this many bytes in total, no further line is added. The answers to
# lines that were added before can still exceed this limit.
MAX_HELD_BYTES = 256 * 1024 * 1024

Ask = Callable[[BatchRequest], Awaitable[Answer]]


@dataclass(slots=True)
class Tally:
    """Counts of the lines in the output. `kept`: lines that an earlier run wrote; they also count as succeeded or
    failed."""

    succeeded: int = 0
    failed: int = 0
    kept: int = 0

    @property
    def written(self) -> int:
        return self.succeeded + self.failed

    def count(self, succeeded: bool) -> None:
        self.succeeded += succeeded
        self.failed += not succeeded


async def skip_answered(lines: AsyncIterator[Line], output: BatchOutput, tally: Tally) -> None:
    """Skips the input lines that the output already answers. Raises BatchError if the output belongs to another
    batch."""
    for custom_id, succeeded in output.kept():
        line = await anext(lines, None)
        asked = None if line is None else custom_id_of(line.text)
        if line is None or custom_id != asked:
            place = "more lines than the input" if line is None else f"{custom_id!r} where the input has {asked!r}"
            raise BatchError(f"{output.name} cannot be continued: it has {place}; it belongs to another batch")
        tally.count(succeeded)
        tally.kept += 1
        await asyncio.sleep(0)  # Let other tasks run while a long file is read.


class BatchRun:
    """A run of a batch. `on_written` is called after each answer is written to the output."""

    def __init__(
        self, ask: Ask, output: BatchOutput, tally: Tally, max_concurrency: int, on_written: Callable[[], None]
    ) -> None:
        self._ask = ask
        self._output = output
        self._tally = tally
        self._on_written = on_written
        self._turns = asyncio.Semaphore(max_concurrency)
        # Tasks that return the answers, in input order; None marks the end.
        self._answers: asyncio.Queue[asyncio.Task[OutputLine] | None] = asyncio.Queue(WINDOW * max_concurrency)
        self._held_bytes = 0
        self._has_room = asyncio.Event()
        self._has_room.set()

    async def run(self, lines: AsyncIterator[Line]) -> None:
        """Runs all lines and writes their answers. When cancelled, leaves only whole lines in the output file. Raises
        BatchError."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._write_in_order())
                async for line in lines:
                    await self._has_room.wait()
                    self._hold(len(line.text or b""))
                    await self._answers.put(group.create_task(self._answer(line)))
                await self._answers.put(None)
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _answer(self, line: Line) -> OutputLine:
        size = len(line.text or b"")
        try:
            request = parse_request(line.text)
            async with self._turns:
                answer = answer_line(request.custom_id, await self._ask(request))
        except RequestError as error:
            answer = error_line(custom_id_of(line.text), error)
        self._hold(len(answer.data) - size)
        return answer

    async def _write_in_order(self) -> None:
        while (task := await self._answers.get()) is not None:
            answer = await task
            await self._output.write(answer)
            self._hold(-len(answer.data))
            self._tally.count(answer.succeeded)
            self._on_written()

    def _hold(self, num_bytes: int) -> None:
        self._held_bytes += num_bytes
        if self._held_bytes < MAX_HELD_BYTES:
            self._has_room.set()
        else:
            self._has_room.clear()
