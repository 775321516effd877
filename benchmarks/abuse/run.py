"""Runs the rows while a neighbour streams, and measures their effect on the neighbour."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.abuse.attack import Answer, Attack, Row, Target
from benchmarks.abuse.memory import watched
from benchmarks.abuse.neighbour import Neighbour, Report
from benchmarks.abuse.stack import RunningStack, running_stack

# Seconds without an attack that are measured before each attack. After the attack, the measurement is as long as the
# attack, up to MAX_BASELINE_S, so that gaps with other causes are equally likely with and without the attack.
BASELINE_S = 3.0
MAX_BASELINE_S = 10.0
# Seconds to measure after the answer, because an attack can have effects later.
TAIL_S = 1.0
# Seconds to wait for the neighbour to end a stream after an attack.
SETTLE_S = 60.0
# Seconds after which an attack is cancelled. The longest one takes 84 to 95 s on two cores.
LIMIT_S = 300.0
# Bounds for the verdict: seconds added to the neighbour's longest gap, and the router's memory in MB.
MAX_ADDED_S = 0.2
MAX_ROUTER_MB = 500.0
# Bound for the longest wait in seconds during a row that takes all places.
MAX_WAIT_S = 15.0


@dataclass(frozen=True, slots=True)
class Measurement:
    row: str
    copies: int
    # The neighbour's longest gap and its longest wait for a first piece, in seconds.
    gap_without: float
    gap_with: float
    wait_without: float
    wait_with: float
    # Seconds until the last answer arrived.
    seconds: float
    # Peak memory in MB by part, children included.
    peak_mb: Mapping[str, float]
    # The most frequent answer.
    status: int
    answer: str
    # Descriptions of everything that is wrong.
    faults: Sequence[str]


async def measure(rows: Sequence[Row]) -> AsyncIterator[Measurement]:
    """Measures each row, once for each of its numbers of copies."""
    with running_stack() as stack:
        neighbour = Neighbour(stack.target.host, stack.target.port)
        try:
            # Later streams are compared with the first ones, which must run without an attack.
            await _settled(neighbour, 2)
            for row in rows:
                attack = row.make()
                for copies in row.copies:
                    yield await _measured(stack, neighbour, row, attack, copies)
        finally:
            neighbour.stop()


async def _settled(neighbour: Neighbour, num_streams: int = 1) -> None:
    """Waits until the neighbour has ended `num_streams` more streams, for at most SETTLE_S."""
    start = time.monotonic()
    for _ in range(int(SETTLE_S / 0.2)):
        if (await neighbour.report(start, time.monotonic())).num_streams >= num_streams:
            return
        await asyncio.sleep(0.2)


async def _baseline(neighbour: Neighbour, seconds: float) -> Report:
    await _settled(neighbour)
    start = time.monotonic()
    await asyncio.sleep(seconds)
    return await neighbour.report(start, time.monotonic())


async def _measured(stack: RunningStack, neighbour: Neighbour, row: Row, attack: Attack, copies: int) -> Measurement:
    before = await _baseline(neighbour, BASELINE_S)
    begin = time.monotonic()
    async with watched(stack.processes) as peaks:
        answers = await asyncio.gather(*(limited(attack, stack.target) for _ in range(copies)))
        seconds = time.monotonic() - begin
        await asyncio.sleep(TAIL_S)
    during = await neighbour.report(begin, time.monotonic())
    after = await _baseline(neighbour, min(seconds + TAIL_S, MAX_BASELINE_S))
    gap, wait = max(before.longest_gap, after.longest_gap), max(before.longest_wait, after.longest_wait)
    (answer, _), *_ = Counter(answers).most_common(1)
    faults = [fault.partition(":")[0] for fault in map(row.fault, answers) if fault is not None]
    faults += [f"the neighbour's stream: {fault}" for fault in during.faults]
    if during.longest_gap - gap > MAX_ADDED_S:
        faults.append(f"more than {1e3 * MAX_ADDED_S:.0f} ms added to a gap")
    if during.longest_wait - wait > MAX_ADDED_S and not row.takes_all_places:
        faults.append(f"more than {1e3 * MAX_ADDED_S:.0f} ms added to a wait")
    if row.takes_all_places and during.longest_wait > MAX_WAIT_S:
        faults.append(f"others waited for more than {MAX_WAIT_S:.0f} s")
    if peaks["router"] > MAX_ROUTER_MB:
        faults.append(f"router above {MAX_ROUTER_MB:.0f} MB")
    return Measurement(
        row.name, copies, gap, during.longest_gap, wait, during.longest_wait, seconds, dict(peaks), answer.status,
        _begun(answer), tuple(dict.fromkeys(faults)),
    )  # fmt: skip


async def limited(attack: Attack, target: Target, limit_s: float = LIMIT_S) -> Answer:
    """The attack's answer. An attack that takes more than `limit_s` seconds, or that cannot connect, has status 0."""
    try:
        async with asyncio.timeout(limit_s):
            return await attack(target)
    except TimeoutError:
        return Answer(0, f"no answer within {limit_s:.0f} s")
    except OSError as error:
        return Answer(0, f"{type(error).__name__}: {error}")


def _begun(answer: Answer) -> str:
    """Returns the beginning of the answer's text, or of its error message."""
    message = answer.error.get("message") or answer.text
    return " ".join(str(message).split())[:100]
