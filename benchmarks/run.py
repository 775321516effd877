"""Measures every figure in docs/performance.md: `make bench`, or `python -m benchmarks.run startup overhead steps`.

Prints a table and stores the numbers with machine, versions and date in benchmarks/results/.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from benchmarks import (
    batching,
    deciding,
    discovery,
    hit_rate,
    implementations,
    joining,
    kv_memory,
    long_prompt,
    overhead,
    pauses,
    preemption,
    prefix_hit,
    quantization,
    quantized_steps,
    router,
    scaling,
    simulation,
    startup,
    steps,
    tracing,
)
from benchmarks.record import keep

BENCHMARKS: dict[str, Callable[[], dict[str, float]]] = {
    "startup": startup.measure,
    "overhead": overhead.measure,
    "steps": steps.measure,
    "deciding": deciding.measure,
    "kv_memory": kv_memory.measure,
    "hit_rate": hit_rate.measure,
    "prefix_hit": prefix_hit.measure,
    "long_prompt": long_prompt.measure,
    "batching": batching.measure,
    "preemption": preemption.measure,
    "simulation": simulation.measure,
    "quantization": quantization.measure,
    "quantized_steps": quantized_steps.measure,
    "implementations": implementations.measure,
    "router": router.measure,
    "discovery": discovery.measure,
    "joining": joining.measure,
    "pauses": pauses.measure,
    "scaling": scaling.measure,
    "tracing": tracing.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], help="benchmarks to run; default: all")
    for name in parser.parse_args().names or BENCHMARKS:
        keep(name, BENCHMARKS[name]())


if __name__ == "__main__":
    main()
