"""`python -m tests.chaos.dynamo`: one part is killed while 8 clients send 100 requests each, as in the table that
Dynamo publishes (tests/fault_tolerance/README.md of ai-dynamo/dynamo at 01d7aed).

A client sends no request again: a refused one counts, too, in a column of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from tests.chaos import GRPC_VARIABLES

os.environ.update(GRPC_VARIABLES)

from benchmarks.record import RESULTS, in_words, provenance
from tests.chaos.catalog import Request, catalog
from tests.chaos.checker import check
from tests.chaos.draw import KILL
from tests.chaos.fleet import Shape
from tests.chaos.history import Call, Fault, Record, read
from tests.chaos.pauses import by_kind
from tests.chaos.stage import Stage, staged

NUM_CLIENTS, NUM_EACH = 8, 100
# Number of calls that have ended when the part is killed.
KILL_AFTER = 200
MAX_TOKENS = 80
STREAMS = ("chat, streamed", "completion, logprobs", "gRPC Chat 0", "gRPC Chat 1")


@dataclass(frozen=True, slots=True)
class Scenario:
    """`victim`: the part to kill. `dynamo`: what Dynamo calls it, and how many of 800 requests failed there; "–" where
    its table has no such row. Quire's worker has no engine process of its own."""

    name: str
    shape: Shape
    victim: str
    dynamo: str
    dynamo_failed: str


_ONE_OF_EACH = Shape(routers=1, schedulers=1, workers=1)
SCENARIOS = (
    Scenario("the only router", _ONE_OF_EACH, "router-0", "frontend", "144"),
    Scenario("the only router, with four workers", Shape(1, 1, 4), "router-0", "frontend, with four workers", "128"),
    Scenario("one of two routers", Shape(2, 1, 1), "router-0", "–", "–"),
    Scenario("the only scheduler", _ONE_OF_EACH, "scheduler-0", "processor", "216"),
    Scenario("the only worker", _ONE_OF_EACH, "worker-0", "single worker / its engine process", "280 / 680"),
    Scenario("one of four workers", Shape(1, 1, 4), "worker-0", "one of four workers", "4"),
)


@dataclass(frozen=True, slots=True)
class Row:
    scenario: str
    dynamo: str
    dynamo_failed: str
    calls: int
    # Calls that were lost, changed or left hanging.
    failed: int
    # Streams that the killed router was serving.
    cut_with_router: int
    # Calls that got a 503 with Retry-After, and were not sent again.
    refused: int
    # The longest pause of any stream beyond the usual, in seconds.
    worst_pause: float
    # Seconds from the kill until the part served again.
    back_after: float


async def play(scenario: Scenario, history: Path) -> Sequence[Request]:
    """Plays a scenario and writes its history to a file. Returns the catalog."""
    # Streams of one length, as there.
    requests = [one for one in catalog(scenario.shape.model, MAX_TOKENS) if one.name.startswith(STREAMS)]
    async with staged(scenario.shape, history, lambda line: print(line, flush=True), requests) as stage:
        await stage.send_each(2, NUM_CLIENTS)
        stage.load.phase = "storm"
        ended = asyncio.Semaphore(0)
        turns = (stage.requests[number % len(stage.requests)] for number in range(NUM_CLIENTS * NUM_EACH))
        clients = [
            asyncio.create_task(_client(stage, list(islice(turns, NUM_EACH)), ended)) for _ in range(NUM_CLIENTS)
        ]
        for _ in range(KILL_AFTER):
            await ended.acquire()
        victim, start = stage.fleet.members[scenario.victim], stage.clock()
        stage.say(f"kill {scenario.victim}")
        victim.hold()
        victim.kill()
        await victim.wait_exited()
        victim.release()
        await victim.wait_up()
        stage.recorder.add(Fault(KILL, (scenario.victim,), round(start, 4), round(stage.clock(), 4)))
        await asyncio.gather(*clients)
    return stage.requests


async def _client(stage: Stage, requests: Sequence[Request], ended: asyncio.Semaphore) -> None:
    for request in requests:
        call = await stage.load.send(request)
        ended.release()
        if call.retry_after is not None:
            await asyncio.sleep(call.retry_after)


def row(scenario: Scenario, records: Sequence[Record], requests: Sequence[Request]) -> Row:
    verdict = check(records, requests, scenario.shape)
    for finding in verdict.findings:
        print(finding)
    (figures,) = by_kind(records, verdict.broken)
    (fault,) = (record for record in records if isinstance(record, Fault))
    storm = [record for record in records if isinstance(record, Call) and record.phase == "storm"]
    became = Counter(verdict.broken.get(call.id, "") for call in storm)
    excused = became.pop("excused", 0)
    return Row(
        scenario.name,
        scenario.dynamo,
        scenario.dynamo_failed,
        len(storm),
        sum(became.values()) - became[""],
        excused,
        sum(call.status in (429, 503) for call in storm),
        round(figures.worst_pause, 1),
        round(fault.end - fault.start, 1),
    )


def table(rows: Sequence[Row]) -> str:
    lines = [
        "| killed | requests | failed | streams of the killed router | refused, with Retry-After | worst pause (s) | "
        "back after (s) | Dynamo's row | failed of 800 there |",
        "|---|---:|---:|---:|---:|---:|---:|---|---:|",
    ]
    lines += [
        f"| {one.scenario} | {one.calls} | {one.failed} | {one.cut_with_router} | {one.refused} | {one.worst_pause} | "
        f"{one.back_after} | {one.dynamo} | {one.dynamo_failed} |"
        for one in rows
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.dynamo", description=__doc__)
    parser.add_argument("--only", choices=[scenario.name for scenario in SCENARIOS], help="play one scenario")
    parser.add_argument("--store", action="store_true", help="store the table in benchmarks/results")
    arguments = parser.parse_args()
    rows = []
    for scenario in SCENARIOS:
        if arguments.only in (None, scenario.name):
            print(f"\n{scenario.name}", flush=True)
            with tempfile.TemporaryDirectory(prefix="chaos-history-") as directory:
                history = Path(directory) / "history.jsonl.gz"
                requests = asyncio.run(play(scenario, history))
                rows.append(row(scenario, list(read(history)), requests))
    print(f"\n{table(rows)}")
    if arguments.store:
        record = provenance()
        text = (
            f"# One part killed under 800 requests\n\nBy `python -m tests.chaos.dynamo --store`; {in_words(record)}.\n"
        )
        (RESULTS / "chaos_dynamo.md").write_text(f"{text}\n{table(rows)}\n")
        stored = record | {"rows": [asdict(one) for one in rows]}
        (RESULTS / "chaos_dynamo.json").write_text(json.dumps(stored, indent=2) + "\n")
    return 1 if any(one.failed for one in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
