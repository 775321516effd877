"""Runs the fleet in virtual time: `python -m tests.virtual --seeds 20000 --jobs 2`, or `--seed 7 -v` for one seed."""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

from benchmarks.record import store
from tests.virtual.nemesis import DRAWN, Numbers
from tests.virtual.simulation import Outcome, run_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.virtual", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="number of seeds to run")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--seed", type=int, help="run only this seed, and say how it ends")
    parser.add_argument("--faults", type=int, help="number of faults of each seed; default: 3 to 8, by seed")
    parser.add_argument("--drains", type=int, help="number of parts that are told to end; default: 0 to 2, by seed")
    parser.add_argument("--hides", type=int, help="number of losses of discovery; default: 0 to 3, by seed")
    parser.add_argument("--hunts", type=int, help="number of requests that are hunted; default: 0 or 1, by seed")
    parser.add_argument("--poisons", type=int, help="number of poisonous requests; default: 0 to 2, by seed")
    parser.add_argument("--store", action="store_true", help="store the figures in benchmarks/results")
    parser.add_argument("-v", "--verbose", action="store_true", help="with --seed: print every fault and log line")
    options = parser.parse_args()
    numbers = Numbers(options.faults, options.drains, options.hides, options.hunts, options.poisons)
    if options.seed is not None:
        return _run_one(options.seed, options.verbose, numbers)
    seeds = range(options.first, options.first + options.seeds)
    figures = _run_many(seeds, options.jobs, partial(silent, numbers=numbers))
    if options.store:
        store("virtual_time", figures)
    return figures["broken promises"] > 0


def _run_one(seed: int, is_verbose: bool, numbers: Numbers) -> int:
    if is_verbose:
        logging.basicConfig(level=logging.DEBUG, format="           %(name)s: %(message)s", stream=sys.stdout)
        logging.getLogger("asyncio").setLevel(logging.WARNING)
    else:
        logging.disable()
    outcome = run_seed(seed, print if is_verbose else None, numbers)
    print(f"seed {seed}: {outcome.violation or 'kept every promise'}")
    print(f"{outcome.num_requests} requests, {outcome.num_errors} errors, {outcome.num_faults} faults", outcome.faults)
    print(f"{outcome.virtual_seconds:.1f} virtual seconds, {outcome.num_callbacks} callbacks")
    return outcome.violation is not None


def silent(seed: int, numbers: Numbers = DRAWN) -> Outcome:
    started = time.process_time()
    outcome = run_seed(seed, None, numbers)
    gc.collect()
    outcome.cpu_seconds = time.process_time() - started
    return outcome


def prepare() -> None:
    """Prepares a process for many seeds: garbage is collected between them, without what was imported before."""
    logging.disable()
    gc.disable()
    gc.freeze()


def _run_many(seeds: range, jobs: int, task: Callable[[int], Outcome]) -> dict[str, float]:
    """Returns the figures that it has printed."""
    started = time.monotonic()
    faults: Counter[str] = Counter()
    num_requests = num_errors = num_faults_in_all = num_under_load = num_bad = 0
    fewest_faults = fewest_under_load = sys.maxsize
    virtual_seconds = cpu_seconds = 0.0
    with multiprocessing.Pool(jobs, prepare) as pool:
        pending = pool.imap_unordered(task, seeds, chunksize=10)
        for number, outcome in enumerate(pending, 1):
            faults.update(outcome.faults)
            num_requests += outcome.num_requests
            num_errors += outcome.num_errors
            num_faults_in_all += outcome.num_faults
            fewest_faults = min(fewest_faults, outcome.num_faults)
            num_under_load += outcome.num_under_load
            fewest_under_load = min(fewest_under_load, outcome.num_under_load)
            virtual_seconds += outcome.virtual_seconds
            cpu_seconds += outcome.cpu_seconds
            if outcome.violation is not None:
                num_bad += 1
                print(f"seed {outcome.seed}: {outcome.violation}", flush=True)
            if number % 1000 == 0:
                print(f"{number} seeds, {number / (time.monotonic() - started) * 3600:.0f} per hour", flush=True)
    seconds = time.monotonic() - started
    number = len(seeds)
    print(f"{number} seeds in {seconds:.0f} s: {number / seconds * 3600:.0f} seeds per hour with {jobs} processes")
    print(f"per seed: {num_requests / number:.0f} requests, {num_faults_in_all / number:.1f} faults", end=" ")
    print(f"(at least {fewest_faults}), {num_under_load / number:.1f} of them under load", end=" ")
    print(f"(at least {fewest_under_load}),", end=" ")
    print(
        f"{virtual_seconds / number:.1f} virtual seconds, {num_errors / number:.2f} errors within the rules,", end=" "
    )
    print(f"{cpu_seconds / number:.3f} s of processor time")
    print("faults: " + ", ".join(f"{name} {count}" for name, count in faults.most_common()))
    print(f"{num_bad} seeds broke a promise")
    return {
        "first seed": seeds.start,
        "seeds": number,
        "processes": jobs,
        "seeds per hour": number / seconds * 3600,
        "requests per seed": num_requests / number,
        "faults per seed": num_faults_in_all / number,
        "fewest faults of a seed": fewest_faults,
        "faults under load per seed": num_under_load / number,
        "fewest faults under load": fewest_under_load,
        "errors within the rules per seed": num_errors / number,
        "broken promises": num_bad,
    }


if __name__ == "__main__":
    sys.exit(main())
