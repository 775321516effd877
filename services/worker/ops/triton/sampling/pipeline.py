"""Launches the kernels that sample one batch of rows, and holds the scratch memory that they share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from services.worker.ops.triton.sampling import columns, cuts, threshold, top
from services.worker.ops.triton.sampling.columns import NUM_WARPS, TILE
from services.worker.ops.triton.sampling.cuts import brackets_kernel, collect_kernel, pivots_kernel
from services.worker.ops.triton.sampling.draw import draw_kernel, finish_kernel
from services.worker.ops.triton.sampling.shape import shape_kernel
from services.worker.ops.triton.sampling.threshold import threshold_kernel
from services.worker.ops.triton.sampling.top import top_rows_kernel, top_tiles_kernel


@dataclass(frozen=True, slots=True)
class SampleRows:
    """The rows of one sample, on the device."""

    slots: Tensor  # int32 [n]; -1: the row is unused, and its result is token 0, marked as not valid
    positions: Tensor  # int32 [n], of the token to be sampled
    mask_rows: Tensor  # int32 [n], row of the token masks; -1: none


@dataclass(frozen=True, slots=True)
class SlotState:
    """State of all slots on the device: sampling parameters of their sequences, and values that sampling changes."""

    columns: Tensor  # int32 [max_num_seqs, WIDTH], see `columns.py`
    counts: Tensor  # int32 [pool, vocab]: how often the output has each token, plus IN_PROMPT if the prompt has it
    biases: Tensor  # float32 [pool, vocab]
    last_tokens: Tensor  # int64 [max_num_seqs]


@dataclass(frozen=True, slots=True)
class Stages:
    """The optional stages that a step runs: those that at least one row needs. The host knows them without asking the
    device."""

    shape: bool  # some row needs more than the argmax of its unchanged logits
    cuts: bool  # some row uses top-k or top-p


class Pipeline:
    """Samples up to `max_rows` rows at a time. Scratch memory is allocated once; `run` allocates only the tensors that
    it returns."""

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._tiles = triton.cdiv(vocab_size, TILE)
        self._padded_tiles = triton.next_power_of_2(self._tiles)

        def scratch(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty((max_rows, *shape), dtype=dtype, device=device)

        self._shaped = scratch(vocab_size)
        self._raw_peaks, self._peaks, self._scores = (scratch(self._tiles) for _ in range(3))
        self._tokens = scratch(self._tiles, dtype=torch.int32)
        self._counts = scratch(self._tiles, cuts.PIVOTS.value, dtype=torch.int32)
        self._masses = scratch(self._tiles, cuts.PIVOTS.value)
        self._found = scratch(cuts.FOUND.value, dtype=torch.int32)
        self._offsets = scratch(2, self._tiles, dtype=torch.int32)
        self._lists = scratch(2, cuts.CAPACITY.value)
        self._cut = scratch(dtype=torch.int32)
        self._keys = scratch(self._tiles, top.PLACES.value, dtype=torch.int64)
        self._normalizers = scratch(2)

    def run(
        self, logits: Tensor, rows: SampleRows, state: SlotState, masks: Tensor | None, stages: Stages
    ) -> tuple[Tensor, Tensor]:
        """Samples from logits [n, vocab] of any float type, with contiguous rows; does not change them. Returns tokens,
        int64 [n], and whether each token is valid, bool [n]. It is not valid if its row is unused, has a logit that is
        NaN or +inf, or has a mask that allows no token.

        Writes `state.last_tokens` and `state.counts`. masks int32 [m, at least ceil(vocab / 32)]; None if no row has a
        mask.
        """
        if stages.shape:
            self.shape(logits, rows, state, masks)
        if stages.cuts:
            self.find_cuts(logits, rows, state)
        return self._draw(logits, rows, state, stages)

    def shape(self, logits: Tensor, rows: SampleRows, state: SlotState, masks: Tensor | None) -> Tensor:
        """Returns float32 [max_rows, vocab]: the changed logits of rows with penalties, biases or a mask. Other rows of
        the result are unspecified."""
        masks = rows.mask_rows[:, None] if masks is None else masks  # a placeholder, which no row reads
        shape_kernel[(len(logits), self._tiles)](
            logits, logits.stride(0), state.columns, rows.slots, rows.mask_rows, state.counts, state.biases, masks,
            self._shaped, self._raw_peaks, self._peaks, self._vocab_size, self._tiles, masks.stride(0),
            TILE=TILE, num_warps=NUM_WARPS,
        )  # fmt: skip
        return self._shaped

    def find_cuts(self, logits: Tensor, rows: SampleRows, state: SlotState) -> Tensor:
        """Returns int32 [max_rows]: for each row with top-k or top-p, the greatest distance (`rows.py`) of a token that
        the cuts keep. Call it after `shape`."""
        n, vocab, tiles = len(logits), self._vocab_size, self._tiles
        tiled = {"TILE": TILE, "TILES": self._padded_tiles, "num_warps": NUM_WARPS}
        source = (logits, logits.stride(0), state.columns, rows.slots, rows.mask_rows, self._shaped, self._peaks)
        pivots_kernel[(n, tiles)](*source, self._counts, self._masses, vocab, tiles, **tiled)
        brackets_kernel[(n,)](
            state.columns, rows.slots, self._counts, self._masses, self._found, self._offsets, tiles,
            TILES=self._padded_tiles, num_warps=NUM_WARPS,
        )  # fmt: skip
        collect_kernel[(n, tiles)](*source, self._found, self._offsets, self._lists, vocab, tiles, **tiled)
        threshold_kernel[(n,)](
            *source, self._found, self._lists, self._cut, vocab, tiles, TILES=self._padded_tiles,
            num_warps=threshold.NUM_WARPS,
        )  # fmt: skip
        return self._cut

    def _draw(self, logits: Tensor, rows: SampleRows, state: SlotState, stages: Stages) -> tuple[Tensor, Tensor]:
        n, vocab, tiles = len(logits), self._vocab_size, self._tiles
        drawn = torch.empty(n, dtype=torch.int64, device=logits.device)
        valid = torch.empty(n, dtype=torch.uint8, device=logits.device)
        draw_kernel[(n, tiles)](
            logits, logits.stride(0), state.columns, rows.slots, rows.positions, rows.mask_rows, self._shaped,
            self._raw_peaks, self._peaks, self._cut, self._scores, self._tokens, vocab, tiles,
            GREEDY=not stages.shape, CUTS=stages.cuts, TILE=TILE, TILES=self._padded_tiles, num_warps=NUM_WARPS,
        )  # fmt: skip
        finish_kernel[(n,)](
            state.columns, rows.slots, self._raw_peaks, self._scores, self._tokens, state.counts, drawn, valid,
            state.last_tokens, vocab, tiles, TILES=self._padded_tiles, num_warps=1,
        )  # fmt: skip
        return drawn, valid.view(torch.bool)

    def empty_log_probabilities(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns uninitialized tensors for the results of `log_probabilities` for these rows."""
        m, count = len(rows), min(top.TOP, self._vocab_size)
        return (
            torch.empty(m, dtype=torch.float32, device=rows.device),
            torch.empty((m, count), dtype=torch.int64, device=rows.device),
            torch.empty((m, count), dtype=torch.float32, device=rows.device),
        )

    def log_probabilities(
        self, logits: Tensor, rows: Tensor, drawn: Tensor, out: tuple[Tensor, Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns, for rows `rows` (int64 [m]) of a sample: log probabilities of the sampled tokens, float32 [m]; the
        TOP likeliest tokens, int64 [m, TOP], descending, ties by id; and their log probabilities, float32 [m, TOP].
        Fewer than TOP if the vocabulary is smaller. Writes into `out` if it is given."""
        logprobs, top_tokens, top_logprobs = out or self.empty_log_probabilities(rows)
        m, count = top_tokens.shape
        peaks, sums = self._peaks, self._scores  # reused as scratch memory: sampling does not need them any more
        top_tiles_kernel[(m, self._tiles)](
            logits, logits.stride(0), rows, self._keys, peaks, sums, self._vocab_size, self._tiles,
            COUNT=count, TILE=TILE, num_warps=top.NUM_WARPS,
        )  # fmt: skip
        top_rows_kernel[(m,)](
            logits, logits.stride(0), rows, drawn, self._keys, peaks, sums, logprobs, top_tokens, top_logprobs,
            self._normalizers, self._tiles, COUNT=count, TILES=self._padded_tiles, num_warps=top.NUM_WARPS,
        )  # fmt: skip
        return logprobs, top_tokens, top_logprobs

    @property
    def normalizers(self) -> Tensor:
        """Returns float32 [max_rows, 2]: two numbers for each row of the last call of `log_probabilities`. The log
        probability of any token in the row is its logit minus the first number, minus the second, in this order."""
        return self._normalizers


def sample_gumbel(logits: Tensor, seeds: Tensor, positions: Tensor, choice_indices: Tensor) -> Tensor:
    """See `interface.Ops`. Raises ValueError for wrong types, shapes or layouts."""
    n, vocab = logits.shape
    if logits.dtype is not torch.float32 or logits.stride(1) != 1 or not vocab:
        raise ValueError("logits must be float32 [n, vocab] with contiguous rows")
    for x, dtype in ((seeds, torch.int64), (positions, torch.int32), (choice_indices, torch.int32)):
        if x.dtype is not dtype or x.shape != (n,) or not x.is_contiguous():
            raise ValueError(f"seeds, positions and choice indices must be int64, int32 and int32 [{n}]")
    if not n:
        return seeds.new_empty(0)
    table = torch.zeros((n, columns.WIDTH.value), dtype=torch.int32, device=logits.device)
    numbers = table.view(torch.float32)
    numbers[:, columns.TEMPERATURE.value] = 1.0
    numbers[:, columns.LOG_MIN_P.value] = -torch.inf
    table[:, [columns.COUNTS_ROW.value, columns.BIAS_ROW.value]] = -1
    table[:, columns.SEED.value : columns.SEED.value + 2] = seeds.view(torch.int32).view(n, 2)
    table[:, columns.CHOICE.value] = choice_indices
    tiles = triton.cdiv(vocab, TILE)
    padded = triton.next_power_of_2(tiles)
    slots = torch.arange(n, dtype=torch.int32, device=logits.device)
    nothing = torch.full_like(slots, -1)
    # The kernel subtracts a row's greatest logit, which it takes from `peaks`. With zeros there, logits stay unchanged.
    peaks = torch.zeros((n, tiles), dtype=torch.float32, device=logits.device)
    scores, tokens = torch.empty_like(peaks), torch.empty_like(peaks, dtype=torch.int32)
    drawn, valid = torch.empty_like(seeds), torch.empty(n, dtype=torch.uint8, device=logits.device)
    draw_kernel[(n, tiles)](
        logits, logits.stride(0), table, slots, positions, nothing, logits, peaks, peaks, slots, scores, tokens,
        vocab, tiles, GREEDY=False, CUTS=False, TILE=TILE, TILES=padded, num_warps=NUM_WARPS,
    )  # fmt: skip
    finish_kernel[(n,)](
        table, slots, peaks, scores, tokens, table, drawn, valid, drawn, vocab, tiles, TILES=padded, num_warps=1,
    )  # fmt: skip
    return drawn
