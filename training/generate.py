"""Greedy generation for many prompts at once, with transformers, as the measurements and tests need it."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import DynamicCache

Chat = list[dict[str, str]]


def load(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A stored model in float32, whatever it is stored in, and its tokenizer."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)  # in eval mode
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
    return model, tokenizer


def prompt_ids(tokenizer: PreTrainedTokenizerBase, chat: Chat) -> list[int]:
    """The tokens of a chat that waits for the assistant's reply."""
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def text_of(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> str:
    """The text of one sequence of tokens."""
    text = tokenizer.decode(ids)
    assert isinstance(text, str)
    return text


@torch.inference_mode()
def greedy(model: PreTrainedModel, prompts: list[list[int]], ends: set[int], max_tokens: int) -> list[list[int]]:
    """The replies' tokens, without the end. Prompts are padded on the left, finished rows leave the batch."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    replies: list[list[int]] = [[] for _ in prompts]
    rows = list(range(len(prompts)))  # which prompt each row of the batch belongs to
    cache = DynamicCache(config=model.config)
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    for _ in range(max_tokens):
        output = model(ids, attention_mask=mask, position_ids=positions, past_key_values=cache, logits_to_keep=1)
        chosen = output.logits[:, -1].argmax(-1)
        going = [i for i, token in enumerate(chosen.tolist()) if token not in ends]
        if not going:
            break
        if len(going) < len(rows):
            keep = torch.tensor(going)
            cache.batch_select_indices(keep)
            rows, chosen, mask, positions = [rows[i] for i in going], chosen[keep], mask[keep], positions[keep]
        for row, token in zip(rows, chosen.tolist(), strict=True):
            replies[row].append(token)
        ids = chosen[:, None]
        mask = torch.cat((mask, torch.ones_like(ids)), dim=1)
        positions = positions[:, -1:] + 1
    return replies
