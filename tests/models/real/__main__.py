"""Compares models with trained weights with transformers, one of each family: `make test-real-models`."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import pytest
import torch
import transformers

from benchmarks.record import in_words, provenance
from tests.models.real.catalogue import AT_HAND, TRAINED, Real, published
from tests.models.real.compare import compare_in_process, compare_over_http, refer
from tests.models.real.prompts import NUM_TOKENS, TEXTS
from tests.models.real.training import train

HEAD = """# Real models beside transformers

Written by `make test-real-models` on {machine}, with transformers {transformers} and torch {torch}.

Every model gets {prompts} prompts and generates {tokens} tokens greedily, in float32: in the worker's code, with chunks
beside decodes, and through `quire serve` over HTTP, all prompts at once. Every token and every text must be that of
transformers' `generate`. Encoders make a vector of each prompt. "Trained here": a model of some 200,000 parameters that
the command trains for some seconds. "Not on this machine": a published model that was not compared, because nothing is
downloaded.

{compared} models of {families} families are compared, {failed} failed, {missing} are not on this machine.

| model | family | where from | worker | over HTTP |
|---|---|---|---|---|
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, help="directory with published models; the hub's cache is searched too")
    parser.add_argument("--only", nargs="*", help="names of the models to compare")
    parser.add_argument("--no-http", action="store_true", help="compare only the worker's code")
    parser.add_argument("--record", type=Path, help="Markdown file for the table")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    rows: list[str] = []
    families: set[str] = set()
    num_failed = num_missing = 0
    with tempfile.TemporaryDirectory(prefix="quire-real-models-") as directory:
        trained = {f"tiny-{case.model_type}": case for case in TRAINED}
        made = [
            Real(name, case.model_type, "trained here", Path(directory, name), bool(case.head))
            for name, case in trained.items()
        ]
        for real in (*AT_HAND, *made, *published(options.models)):
            if options.only and real.name not in options.only:
                continue
            source = real.source
            if real.name in trained:
                source += f", to a loss of {train(trained[real.name], real.directory):.2f}"
            if not real.is_here:
                results = ["not on this machine", ""]
                num_missing += 1
            else:
                results = _compare(real, not options.no_http)
                num_failed += any(result.startswith("failed") for result in results)
                families.add(real.family)
            print(f"{real.name} ({real.family}): {'; '.join(filter(None, results))}", flush=True)
            rows.append(f"| {real.name} | `{real.family}` | {source} | {' | '.join(results)} |\n")
    num_compared = len(rows) - num_missing
    print(f"{num_compared} models of {len(families)} families, {num_failed} failed, {num_missing} not on this machine")
    if options.record:
        head = HEAD.format(
            machine=in_words(provenance()), transformers=transformers.__version__, torch=torch.__version__,
            prompts=len(TEXTS), tokens=NUM_TOKENS, compared=num_compared, families=len(families), failed=num_failed,
            missing=num_missing,
        )  # fmt: skip
        options.record.write_text(head + "".join(rows), encoding="utf-8")
    return 1 if num_failed else 0


def _compare(real: Real, has_http: bool) -> list[str]:
    """Returns the results in process and over HTTP."""
    results = []
    try:
        reference = refer(real)
        results.append(compare_in_process(real, reference))
        results.append(compare_over_http(real, reference) if has_http else "not compared")
    except (Exception, pytest.fail.Exception) as error:  # one failure must not hide the others
        results.append(f"failed: {type(error).__name__}: {error}".partition("\n")[0].replace("|", "¦"))
    return [*results, ""][:2]


if __name__ == "__main__":
    raise SystemExit(main())
