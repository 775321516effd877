"""`python -m tests.chaos.churn`: workers are added and removed all the time while clients stream.

The measure is ai-dynamo/dynamo issue 13088: with about 250 workers added and 150 removed in 12 minutes, 24 of 1,536
requests never ended there. Workers are fakes without a model, as they were there. They register in Redis, where both
schedulers find them. Afterwards as few workers are left as at first, so that whatever the parts hold for the others
shows as growth.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.chaos import GRPC_VARIABLES

os.environ.update(GRPC_VARIABLES)

from benchmarks.record import RESULTS, in_words, provenance
from tests.chaos import leaks
from tests.chaos.catalog import HttpRequest
from tests.chaos.checker import check
from tests.chaos.fleet import Shape
from tests.chaos.history import Call, read
from tests.chaos.stage import Stage, staged

# Number of workers when the churn begins.
NUM_FIRST = 4
NUM_CLIENTS = 8


@dataclass(frozen=True, slots=True)
class Plan:
    added: int = 250
    removed: int = 150
    requests: int = 1536
    minutes: float = 12.0
    seed: int = 1

    @property
    def shape(self) -> Shape:
        # Every worker that is alive at the end, and some places more, so that an added one always finds a place.
        num_workers = NUM_FIRST + self.added - self.removed + 8
        return Shape(schedulers=0, workers=0, found_model="fake", found_workers=num_workers, has_fake_workers=True)


@dataclass(frozen=True, slots=True)
class Row:
    added: int
    removed: int
    seconds: float
    requests: int
    answered: int
    refused: int
    lost: int
    different: int
    hung: int


def requests() -> list[HttpRequest]:
    """Returns requests with prompts of their own. The fake model's output depends on every token before it."""
    bodies = [
        {"model": "fake", "prompt": [(5 * at + 17 * number) % 200 + 10 for at in range(20)], "max_tokens": 60,
         "temperature": 0, "ignore_eos": True, "return_token_ids": True, "stream": True,
         "stream_options": {"include_usage": True}}
        for number in range(16)
    ]  # fmt: skip
    return [HttpRequest(f"completion {number}", "/v1/completions", body) for number, body in enumerate(bodies)]


async def play(plan: Plan, history: Path) -> tuple[Stage, Counter[str], float]:
    """Runs the churn, and writes its history to a file. Returns the number of changes of each kind, and the seconds
    that they took."""
    left_out = plan.shape.names("worker")[NUM_FIRST:]
    async with staged(plan.shape, history, lambda line: print(line, flush=True), requests(), left_out) as stage:
        await stage.send_each(1, NUM_CLIENTS)
        before, num_before = leaks.resources(stage.fleet), stage.load.num_sent
        stage.load.phase = "storm"
        turns = [plan.requests // NUM_CLIENTS + (number < plan.requests % NUM_CLIENTS) for number in range(NUM_CLIENTS)]
        async with asyncio.TaskGroup() as clients:
            for number, turn in enumerate(turns):
                clients.create_task(_client(stage, number, turn, plan))
            begin = stage.clock()
            done = await _change(stage, plan)
            seconds = stage.clock() - begin
        await _remove_all_but_first(stage)
        stage.leaks += await leaks.held(stage.fleet)
        stage.leaks += await stage.fleet.not_registered()
        after = leaks.resources(stage.fleet)
        stage.leaks += leaks.grown(stage.fleet.shape, before, after, stage.load.num_sent - num_before)
    return stage, done, seconds


async def _remove_all_but_first(stage: Stage) -> None:
    """Removes workers until there are as many as at first."""
    kept = [worker for worker in stage.fleet.of_kind("worker") if worker.is_kept]
    await asyncio.gather(*(worker.stop() for worker in kept[NUM_FIRST:]))


async def _client(stage: Stage, number: int, turns: int, plan: Plan) -> None:
    """Sends requests one after another, spread over the time of the churn."""
    chance, every = random.Random(f"{plan.seed} {number}"), 60 * plan.minutes / max(1, turns)
    begin = stage.clock()
    for turn in range(turns):
        await asyncio.sleep(max(0.0, begin + every * (turn + chance.random()) - stage.clock()))
        await stage.load.send(chance.choice(stage.requests))


async def _change(stage: Stage, plan: Plan) -> Counter[str]:
    """Adds and removes workers in a random order, evenly over the time. Half of the removed ones are killed. Returns
    the number of changes of each kind."""
    chance, done = random.Random(plan.seed), Counter[str]()
    changes = [True] * plan.added + [False] * plan.removed
    chance.shuffle(changes)
    every, begin = 60 * plan.minutes / len(changes), stage.clock()
    workers = stage.fleet.of_kind("worker")
    async with asyncio.TaskGroup() as group:
        for number, is_added in enumerate(changes):
            await asyncio.sleep(max(0.0, begin + every * number - stage.clock()))
            up = [worker for worker in workers if worker.is_kept and worker.is_up.is_set()]
            if number % 40 == 0:
                stage.say(f"{number} of {len(changes)} changes, {len(up)} workers")
            if is_added:
                chance.choice([worker for worker in workers if not worker.is_kept and worker.pid is None]).start()
                done["added"] += 1
            elif len(up) > 1:
                worker = chance.choice(up)
                worker.is_up.clear()
                group.create_task(worker.stop(kills=chance.random() < 0.5))
                done["removed"] += 1
            stage.fleet.note_processes()
    await stage.fleet.wait_up()
    return done


def table(row: Row) -> str:
    """Returns the figures beside those of Dynamo's issue."""
    return "\n".join(
        [
            "| | added | removed | minutes | requests | answered | refused, with Retry-After | lost | changed | hung |",
            "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
            f"| Quire | {row.added} | {row.removed} | {row.seconds / 60:.0f} | {row.requests} | {row.answered} | "
            f"{row.refused} | {row.lost} | {row.different} | {row.hung} |",
            "| Dynamo, issue 13088 | 248 | 149 | 12 | 1536 | | | | | 24 |",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.churn", description=__doc__)
    plan = Plan()
    for name, default, what in (
        ("added", plan.added, "number of workers to add"),
        ("removed", plan.removed, "number of workers to remove"),
        ("requests", plan.requests, "number of requests"),
        ("seed", plan.seed, "seed of the changes and requests"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{what}; default: {default}")
    parser.add_argument("--minutes", type=float, default=plan.minutes, help="minutes of changes; default: 12")
    parser.add_argument(
        "--store", action="store_true", help="store the result in benchmarks/results, unless something is lost or left"
    )
    arguments = vars(parser.parse_args())
    is_stored = arguments.pop("store")
    with tempfile.TemporaryDirectory(prefix="chaos-history-") as directory:
        history = Path(directory) / "history.jsonl.gz"
        stage, done, seconds = asyncio.run(play(Plan(**arguments), history))
        records = list(read(history))
    verdict = check(records, stage.requests, stage.fleet.shape)
    storm = [record for record in records if isinstance(record, Call) and record.phase == "storm"]
    became = Counter(verdict.broken.get(call.id, "") for call in storm)
    refused = sum(call.status in (429, 503) for call in storm)
    row = Row(
        done["added"], done["removed"], round(seconds, 1), len(storm), became[""] - refused, refused,
        became["lost"] + became["refused wrongly"], became["different"], became["hung"],
    )  # fmt: skip
    print(f"\n{table(row)}", *verdict.findings[:20], *stage.leaks, sep="\n")
    if is_stored and not verdict.findings and not stage.leaks:
        record = provenance()
        text = f"# Workers added and removed under load\n\n`python -m tests.chaos.churn --store`; {in_words(record)}.\n"
        (RESULTS / "chaos_churn.md").write_text(f"{text}\n{table(row)}\n")
        (RESULTS / "chaos_churn.json").write_text(json.dumps(record | {"figures": asdict(row)}, indent=2) + "\n")
    return 1 if verdict.findings or stage.leaks else 0


if __name__ == "__main__":
    sys.exit(main())
