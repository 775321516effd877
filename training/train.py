"""Trains the bundled models: `python -m training.train --out quire/models`.

The same seed gives the same text, the same batches and the same recipe everywhere. Weights that are equal bit
for bit are promised only on the same processor, with the same torch and the same number of threads.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from training import corpus, tokenizer
from training.batches import Packer
from training.export import export
from training.model import Decoder, Shape
from training.optimizer import Optimizer
from training.recipe import DRAFT, LARGE, SEED, Recipe

_REPORT_EVERY = 100
_EXPORT_EVERY = 200


def rate_scale(step: int, recipe: Recipe) -> float:
    """Share of the peak learning rates at `step`: up during the warm-up, level, then straight down to nothing."""
    up = (step + 1) / recipe.warmup_steps
    down = (recipe.steps - step) / (recipe.steps * recipe.decay)
    return min(1.0, up, down)


def train(recipe: Recipe, words: Tokenizer, out: Path, compiled: bool) -> None:
    """Train one model and write it to `out`, now and then while training, and at the end."""
    torch.manual_seed(SEED)
    shape = Shape(
        words.get_vocab_size(),
        recipe.hidden_size,
        recipe.num_layers,
        recipe.num_heads,
        recipe.num_kv_heads,
        recipe.intermediate_size,
    )
    model = Decoder(shape)
    forward = torch.compile(model, dynamic=False) if compiled else model
    optimizer = Optimizer(model, recipe.matrix_rate, recipe.other_rate, recipe.matrix_decay)
    packer = Packer(corpus.chats(SEED), words)
    print(f"{recipe.name}: {sum(p.numel() for p in model.parameters()):,} parameters", flush=True)

    start, start_cpu, losses = time.monotonic(), time.process_time(), 0.0
    for step in range(recipe.steps):
        length = recipe.row_length(step)
        ids, spoken = packer.batch(recipe.batch_tokens // length, length)
        with torch.autocast("cpu", torch.bfloat16):
            hidden = forward(ids[:, :-1])
        loss = _loss(hidden, model.embed_tokens.weight, ids[:, 1:], spoken[:, 1:])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step(rate_scale(step, recipe))
        losses += loss.item()
        if (step + 1) % _REPORT_EVERY == 0:
            seconds, cpu = time.monotonic() - start, time.process_time() - start_cpu
            speed = (step + 1) * recipe.batch_tokens / seconds
            progress = f"step {step + 1:5}  loss {losses / _REPORT_EVERY:.4f}"
            print(f"{progress}  {seconds:5.0f} s  {cpu:5.0f} CPU s  {speed:6.0f} tokens/s", flush=True)
            losses = 0.0
        if (step + 1) % _EXPORT_EVERY == 0 or step + 1 == recipe.steps:
            export(model, words, out / recipe.name)


def _loss(hidden: Tensor, embedding: Tensor, targets: Tensor, spoken: Tensor) -> Tensor:
    """Cross entropy of the assistant's tokens; the output layer is run for these alone."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = functional.linear(hidden[spoken], embedding)
    return functional.cross_entropy(logits.float(), targets[spoken])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder that gets one folder per model")
    parser.add_argument("--only", choices=[LARGE.name, DRAFT.name], help="train this one alone (default: both)")
    parser.add_argument("--threads", type=int, default=2, help="processor threads (default: 2)")
    parser.add_argument("--eager", action="store_true", help="do without torch.compile, which needs a C++ compiler")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    words = tokenizer.build(SEED)
    for recipe in (LARGE, DRAFT):
        if arguments.only in (None, recipe.name):
            torch.compiler.reset()
            train(recipe, words, arguments.out, not arguments.eager)


if __name__ == "__main__":
    main()
