"""Rows of [vocab] on the device for those few slots whose sequences want one."""

from __future__ import annotations

import torch


class RowPool:
    """Doubles when it is empty, so that it grows rarely, and never past one row per slot."""

    def __init__(self, max_num_seqs: int, vocab_size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.rows = torch.zeros((1, vocab_size), dtype=dtype, device=device)  # another tensor once it has grown
        self._row_of = [-1] * max_num_seqs
        self._free = [0]

    def take(self, slot: int) -> int:
        """The slot's row, all zeros. A slot that has one keeps it."""
        if self._row_of[slot] < 0:
            if not self._free:
                have = len(self.rows)
                more = min(have, len(self._row_of) - have)
                self.rows = torch.cat((self.rows, self.rows.new_zeros(more, self.rows.shape[1])))
                self._free = list(range(have, have + more))
            self._row_of[slot] = self._free.pop()
        self.rows[self._row_of[slot]].zero_()
        return self._row_of[slot]

    def give_back(self, slot: int) -> None:
        """Does nothing for a slot without a row."""
        if self._row_of[slot] >= 0:
            self._free.append(self._row_of[slot])
            self._row_of[slot] = -1
