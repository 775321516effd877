"""`make chaos`, or `python -m tests.chaos`: carries out faults drawn from a seed on a real fleet under load, and checks
everything that its clients received. The exit status is 1 if anything was lost, changed, stood still or leaked."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from itertools import islice
from pathlib import Path

from tests.chaos import GRPC_VARIABLES

os.environ.update(GRPC_VARIABLES)

from benchmarks.record import RESULTS, in_words, provenance
from tests.chaos import kept
from tests.chaos.checker import check
from tests.chaos.draw import UPGRADE, rounds
from tests.chaos.fleet import STORM
from tests.chaos.history import Call, read
from tests.chaos.nemesis import LastRelease
from tests.chaos.report import summary
from tests.chaos.run import Plan, Result, run
from tests.chaos.stage import catalog_of
from tests.fakes import last_release

# A suspended router is given up after 5 to 6 s (docs/operations.md), any other part earlier, and computing again takes
# a busy machine some time.
MAX_REST_S = 8.0
# More than a storm of a day has.
_MAX_ROUNDS = 20_000


def _last_release(directory: Path) -> LastRelease | None:
    trees = LastRelease(directory / "last-release", directory / "last-release-with-redis")
    trees.plain.mkdir()
    trees.knows_redis.mkdir()
    try:
        last_release.install(trees.plain)
        last_release.install(trees.knows_redis, knows_redis=True)
    except last_release.MissingReleaseError:
        return None
    return trees


def _judge(history: Path, max_rest: float) -> int:
    """Judges the calls of a history. It does not tell what was left when its run ended."""
    records = list(read(history))
    verdict = check(records, catalog_of(STORM), STORM, max_rest=max_rest)
    seconds = max(record.end for record in records if isinstance(record, Call))
    print(summary(records, verdict, Result(None, seconds), STORM))
    return 1 if verdict.findings else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="seed of the faults and of the load; default: 1")
    parser.add_argument("--minutes", type=float, default=30.0, help="minutes of faults; default: 30")
    parser.add_argument("--rounds", type=int, help="number of rounds of faults, whatever time they take")
    parser.add_argument("--replay", type=Path, help="carry out the rounds of this file instead of drawn ones")
    parser.add_argument("--save", type=Path, help="write the rounds to this file, and carry out none; needs --rounds")
    parser.add_argument("--clients", type=int, default=10, help="number of clients; default: 10")
    parser.add_argument(
        "--max-rest", type=float, default=MAX_REST_S, metavar="SECONDS",
        help="longest time in which a stream may stand still although somebody could serve it; default: %(default)g",
    )  # fmt: skip
    parser.add_argument("--judge", type=Path, metavar="HISTORY", help="judge a kept history again, and run nothing")
    parser.add_argument("--store", action="store_true", help="store the report in benchmarks/results")
    parser.add_argument("--history", type=Path, help="file to keep the history in (.jsonl.gz)")
    arguments = parser.parse_args()
    if arguments.judge is not None:
        return _judge(arguments.judge, arguments.max_rest)
    if arguments.replay is not None:
        drawn = kept.read(arguments.replay)
    else:
        drawn = list(islice(rounds(arguments.seed, STORM), arguments.rounds or _MAX_ROUNDS))
    if arguments.save is not None:
        if arguments.rounds is None:
            parser.error("--save needs --rounds")
        kept.write(arguments.save, drawn)
        return 0
    seconds = None if arguments.rounds or arguments.replay else 60 * arguments.minutes
    with tempfile.TemporaryDirectory(prefix="chaos-history-") as directory:
        upgrades = any(fault.kind == UPGRADE for one in drawn for fault in one.faults)
        release = _last_release(Path(directory)) if upgrades else None
        plan = Plan(arguments.seed, drawn, seconds, arguments.clients, release)
        history = arguments.history or Path(directory) / "history.jsonl.gz"
        result = asyncio.run(run(STORM, plan, history, lambda line: print(line, flush=True)))
        records = list(read(history))
    verdict = check(records, catalog_of(STORM), STORM, max_rest=arguments.max_rest)
    report = summary(records, verdict, result, STORM)
    print(f"\n{report}")
    if arguments.store:
        command = f"python -m tests.chaos --seed {arguments.seed} --minutes {arguments.minutes:g}"
        title = "# A fleet under load while its parts and links fail"
        (RESULTS / "chaos.md").write_text(f"{title}\n\n`{command}`; {in_words(provenance())}.\n\n{report}\n")
    return 1 if verdict.findings or result.leaks else 0


if __name__ == "__main__":
    sys.exit(main())
