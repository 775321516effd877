"""Pool of tensor rows [vocab] on the device, for the few slots whose sequences need a row."""

from __future__ import annotations

import torch


class RowPool:
    """Assigns rows to slots. Doubles the number of rows when no row is free, so that the pool grows rarely. Never has
    more rows than there are slots."""

    def __init__(self, max_num_seqs: int, vocab_size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.rows = torch.zeros((1, vocab_size), dtype=dtype, device=device)  # replaced when the pool grows
        self._row_of = [-1] * max_num_seqs
        self._free = [0]

    def take(self, slot: int) -> int:
        """Fills the slot's row with zeros and returns its index. A slot without a row gets a free row first."""
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
        """Frees the slot's row, if it has one."""
        if self._row_of[slot] >= 0:
            self._free.append(self._row_of[slot])
            self._row_of[slot] = -1
