"""How often the draft's best token is the large model's: `python -m training.agreement quire/models`.

Both read the large model's own greedy replies to the test questions, and are compared at every token of them,
the end included. That is the share of single-token drafts that greedy speculation would accept.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import PreTrainedModel

from training import corpus
from training.evaluate import KIND_NAMES, MAX_TOKENS, SEED
from training.generate import greedy, load, prompt_ids
from training.recipe import DRAFT, LARGE


@torch.inference_mode()
def agreement(models: Path, count: int, seed: int = SEED) -> tuple[int, int]:
    """Tokens on which both agree, and tokens compared, over `count` test questions of each kind."""
    large, tokenizer = load(models / LARGE.name)
    draft, _ = load(models / DRAFT.name)
    ends = large.generation_config.eos_token_id
    agreed = compared = 0
    for name in KIND_NAMES:
        items = corpus.held_out_set(seed, name, count)
        prompts = [prompt_ids(tokenizer, [{"role": "user", "content": item.question}]) for item in items]
        replies = [[*reply, ends[0]] for reply in greedy(large, prompts, set(ends), MAX_TOKENS)]
        best = [_best(model, prompts, replies) for model in (large, draft)]
        agreed += int((best[0] == best[1]).sum())
        compared += len(best[0])
    return agreed, compared


def _best(model: PreTrainedModel, prompts: list[list[int]], replies: list[list[int]]) -> torch.Tensor:
    """The model's best token at each place of each reply, all in one row. Padding on the right hides nothing."""
    texts = [prompt + reply for prompt, reply in zip(prompts, replies, strict=True)]
    longest = max(map(len, texts))
    best = model(torch.tensor([text + [0] * (longest - len(text)) for text in texts])).logits.argmax(-1)
    places = zip(best, prompts, texts, strict=True)
    return torch.cat([row[len(prompt) - 1 : len(text) - 1] for row, prompt, text in places])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, help="folder that holds both models")
    parser.add_argument("--count", type=int, default=50, help="questions per kind (default: 50)")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    agreed, compared = agreement(arguments.models, arguments.count)
    print(f"the draft's best token is the large model's in {100 * agreed / compared:.1f} % of {compared:,} tokens")


if __name__ == "__main__":
    main()
