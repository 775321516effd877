"""Trains a small model of a given family for some seconds, on the text that the bundled models were trained on.

Random weights give nearly flat logits and attention. Trained ones have what published models have: sharp attention,
large activations, tokens that lead by far, and text that a person can read.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from torch import Tensor

from tests.models.case import Case
from tests.models.real.catalogue import BUNDLED
from tests.models.tiny import configure
from training.batches import Packer
from training.corpus import chats
from training.tokenizer import END, PAD, special_id

TOKENIZER = BUNDLED / "quire-chat"
NUM_STEPS = 200
ROWS, LENGTH = 6, 64
RATE = 5e-3
WARMUP = 20
MASKED = 0.15  # share of an encoder's tokens that it has to guess


def train(case: Case, directory: Path) -> float:
    """Saves a trained model with its tokenizer. Returns the mean loss of the last 20 steps, in nats for a token."""
    torch.manual_seed(0)
    auto: Any = getattr(transformers, f"AutoModelFor{case.head or 'CausalLM'}")
    model = auto.from_config(configure(case), dtype=torch.float32).train()
    tokenizer = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    packer = Packer(chats(0), tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.05)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, _share_of_rate)
    losses: list[float] = []
    for _ in range(NUM_STEPS):
        ids, _ = packer.batch(ROWS, LENGTH)
        inputs, labels = _masked(ids, special_id(tokenizer, PAD)) if case.head else (ids, ids)
        loss = model(input_ids=inputs, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
        losses.append(loss.item())
    model.eval()
    model.config.eos_token_id = special_id(tokenizer, END)
    model.save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / name, directory / name)
    return sum(losses[-20:]) / 20


def _share_of_rate(step: int) -> float:
    return min((step + 1) / WARMUP, (NUM_STEPS - step) / (NUM_STEPS - WARMUP))


def _masked(ids: Tensor, mask: int) -> tuple[Tensor, Tensor]:
    """Returns the inputs and the labels of masked language modelling. -100 marks a token that is not guessed."""
    is_masked = torch.rand(ids.shape) < MASKED
    return ids.masked_fill(is_masked, mask), ids.masked_fill(~is_masked, -100)
