"""Compares every case with transformers, and keeps a table of the results: `make test-models`."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
import transformers

from benchmarks.record import in_words, provenance
from tests.models.cases import ALL
from tests.models.compare import TOLERANCE, compare
from tests.models.table import WAYS
from tests.models.twins import count_distinct


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, help="Markdown file for the table")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    rows, num_failed = [], 0
    for case in ALL:
        start = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="quire-models-") as directory:
            try:
                ties = compare(case, Path(directory))
                result = f"{ties.compared - ties.excused} of {ties.compared}"
            except Exception as error:  # one failure must not hide the others
                num_failed += 1
                result = f"failed: {type(error).__name__}: {error}".partition("\n")[0]
        print(f"{case}: {result} ({time.perf_counter() - start:.1f} s)", flush=True)
        rows.append(f"| `{case.model_type}` | {case.variant} | {WAYS[case.implementation]} | {result} |")
    types = {case.model_type for case in ALL}
    summary = (
        f"{len(types)} model types, {count_distinct(types)} without twins that differ in name only, {len(ALL)} "
        f"configurations, {num_failed} failed"
    )
    print(summary)
    if options.record:
        head = [
            "# Greedy tokens that equal transformers'",
            "",
            f"Written by `make test-models` on {in_words(provenance())}, with transformers "
            f"{transformers.__version__} and torch {torch.__version__}.",
            "",
            f"{summary}. In float32, with chunks beside decodes, shuffled blocks, preemption by recomputation and by "
            "swapping, whole blocks of a prefix that are shared, and a partial block that is copied. A token may "
            "differ only where the two best logits are closer than 1e-4. Log probabilities differ by less than "
            f"{TOLERANCE:g}.",
            "",
            "| model type | variant | code of the forward pass | equal tokens |",
            "|---|---|---|---|",
        ]
        options.record.write_text("\n".join([*head, *rows]) + "\n", encoding="utf-8")
    return 1 if num_failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
