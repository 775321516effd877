"""Measures the share of right answers per kind: `python -m training.evaluate quire/models/quire-chat`.

Open kinds are asked about operands that the training text does not contain, closed kinds in wordings that it
does not contain. An answer is right if it is the expected one to the letter.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from training import corpus
from training.generate import greedy, load, prompt_ids, text_of
from training.kinds.catalogue import KINDS

SEED = 1  # of the test questions; the training text has another
MAX_TOKENS = 200
KIND_NAMES = tuple(dict.fromkeys(kind.name for kind in KINDS))
OPEN = frozenset(kind.name for kind in KINDS if kind.open)


@dataclass(frozen=True)
class Score:
    """How one kind went; `wrong` holds (question, expected, reply)."""

    kind: str
    asked: int
    wrong: tuple[tuple[str, str, str], ...]

    @property
    def share(self) -> float:
        return 1 - len(self.wrong) / self.asked


def score(folder: Path, count: int, seed: int = SEED, names: tuple[str, ...] = KIND_NAMES) -> Iterator[Score]:
    """Ask the stored model `count` questions of each kind."""
    model, tokenizer = load(folder)
    ends = set(model.generation_config.eos_token_id)
    for name in names:
        items = corpus.held_out_set(seed, name, count)
        prompts = [prompt_ids(tokenizer, [{"role": "user", "content": item.question}]) for item in items]
        replies = [text_of(tokenizer, ids) for ids in greedy(model, prompts, ends, MAX_TOKENS)]
        wrong = tuple(
            (item.question, item.answer, reply)
            for item, reply in zip(items, replies, strict=True)
            if reply not in item.answers
        )
        yield Score(name, len(items), wrong)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the stored model")
    parser.add_argument("--count", type=int, default=200, help="questions per kind (default: 200)")
    parser.add_argument("--show", type=int, default=0, help="wrong answers to print per kind (default: 0)")
    parser.add_argument("--seed", type=int, default=SEED, help=f"seed of the questions (default: {SEED})")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    for result in score(arguments.folder, arguments.count, arguments.seed):
        held_out = "operands" if result.kind in OPEN else "wordings"
        print(f"| {result.kind} | {held_out} | {100 * result.share:.1f} % of {result.asked} |", flush=True)
        for question, expected, reply in result.wrong[: arguments.show]:
            print(f"    {question}\n      expected {expected}\n      got      {reply}")


if __name__ == "__main__":
    main()
