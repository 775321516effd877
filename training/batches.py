"""Packs chats into rows of one length, and marks the tokens that the model is to learn to say."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from tokenizers import Tokenizer
from torch import Tensor

from training.corpus import Message
from training.tokenizer import BEGIN, END, ROLES, special_id


class Packer:
    """Turns chats into batches of `ids` and `spoken`, both [rows, length + 1].

    A row holds whole chats one after the other, the last one cut where the row ends. Nothing separates them
    but the begin token: a model that has learned to pay no heed to the chat before keeps its head in long chats.
    """

    def __init__(self, chats: Iterator[list[Message]], tokenizer: Tokenizer) -> None:
        self._chats = chats
        self._tokenizer = tokenizer
        self._begin = special_id(tokenizer, BEGIN)
        self._end = special_id(tokenizer, END)
        self._roles = {role: special_id(tokenizer, token) for role, token in ROLES.items()}

    def batch(self, rows: int, length: int) -> tuple[Tensor, Tensor]:
        packed = [self._row(length + 1) for _ in range(rows)]
        return torch.tensor([ids for ids, _ in packed]), torch.tensor([spoken for _, spoken in packed])

    def _row(self, size: int) -> tuple[list[int], list[bool]]:
        ids: list[int] = []
        spoken: list[bool] = []
        while len(ids) < size:
            chat = next(self._chats)
            ids.append(self._begin)
            spoken.append(False)
            contents = self._tokenizer.encode_batch([message["content"] for message in chat], add_special_tokens=False)
            for message, content in zip(chat, contents, strict=True):
                said = message["role"] == "assistant"
                ids += [self._roles[message["role"]], *content.ids, self._end]
                spoken += [False] + [said] * (len(content.ids) + 1)
        return ids[:size], spoken[:size]
