"""A floating-point weight, packed for the compiled GEMM."""

from __future__ import annotations

import torch
from torch import Tensor, get_num_threads

from services.worker.ops.cpu.checks import is_plain
from services.worker.ops.cpu.library import Library

PACK_ROWS = 4096  # rows of a weight that are packed at a time; few, so that packing takes little extra memory
# If (rows + 6) · outputs · inputs is below this number, gemm.c uses one thread, and the call takes at most about 12 us.
# Such calls do not release the GIL. (Reading a weight takes as long as about 6 multiplications with it.)
HELD_BELOW = 600_000


def check_ids(ids: Tensor, count: int) -> Tensor:
    """Returns `ids`, contiguous for the kernels. Raises ValueError if they are not int64 [n], and IndexError if an id
    is negative or not below `count`."""
    if ids.dtype is not torch.int64 or ids.dim() != 1 or not ids.is_cpu:
        raise ValueError(f"token ids must be int64 [n], not {ids.dtype} {tuple(ids.shape)}")
    if len(ids):
        lowest, highest = torch.aminmax(ids)
        if lowest < 0 or highest >= count:
            raise IndexError(
                f"token ids {int(lowest)} to {int(highest)} are not all in the vocabulary of {count} tokens"
            )
    return ids.contiguous()


def fits_bfloat16(weight: Tensor) -> bool:
    """Returns whether bfloat16 can represent every value of `weight` exactly."""
    if weight.dtype is torch.bfloat16:
        return True
    return bool(torch.equal(weight.to(torch.bfloat16).to(weight.dtype), weight))


def pack(library: Library, weight: Tensor, words: Tensor, *, half: bool) -> None:
    """Packs a float matrix into `words`, zeros of the size that `quire_packed_words` gives."""
    out_features, in_features = weight.shape
    for first in range(0, out_features, PACK_ROWS):
        chunk = weight[first : first + PACK_ROWS].to(device="cpu", dtype=torch.float32).contiguous()
        library.functions.quire_pack(
            chunk.data_ptr(), words.data_ptr(), first, first + len(chunk), out_features, in_features, half
        )


class PackedLinear:
    """A weight packed into the panels of `gemm.c`: in bfloat16 if that represents every value exactly, else float32."""

    def __init__(self, library: Library, weight: Tensor, bias: Tensor | None) -> None:
        if weight.dim() != 2 or not weight.is_floating_point():
            raise ValueError(f"a weight must be a float matrix, not {weight.dtype} {tuple(weight.shape)}")
        self.out_features, self.in_features = weight.shape
        chunks = (weight[first : first + PACK_ROWS] for first in range(0, self.out_features, PACK_ROWS))
        self.half = all(map(fits_bfloat16, chunks))
        words = library.functions.quire_packed_words(self.out_features, self.in_features, self.half)
        self._words = torch.zeros(words, dtype=torch.int32, device="cpu")
        self._pointer = self._words.data_ptr()
        pack(library, weight, self._words, half=self.half)
        self._bias = None if bias is None else bias.to(device="cpu", dtype=torch.float32, copy=True).contiguous()
        if self._bias is not None and self._bias.shape != (self.out_features,):
            raise ValueError(f"the bias must be [{self.out_features}], not {tuple(self._bias.shape)}")
        self._bias_pointer = 0 if self._bias is None else self._bias.data_ptr()
        self._gemm = library.functions.quire_gemm
        self._held_gemm = library.held.quire_gemm
        self._held_rows = HELD_BELOW // (self.out_features * self.in_features) - 6
        self._lookup = library.functions.quire_embedding

    @property
    def num_bytes(self) -> int:
        return self._words.nbytes

    def description(self) -> dict[str, int]:
        """Returns the values of the fields of `struct linear` in layers.c. Fields that are left out are zero."""
        return {
            "weight": self._pointer, "bias": self._bias_pointer, "in_features": self.in_features,
            "out_features": self.out_features, "bits": 32, "flag": self.half,
        }  # fmt: skip

    def __call__(self, x: Tensor) -> Tensor:
        if not is_plain(x) or x.dim() != 2 or x.shape[1] != self.in_features:
            raise ValueError(f"linear needs contiguous float32 [n, {self.in_features}], not {x.dtype} {tuple(x.shape)}")
        rows = x.shape[0]
        y = x.new_empty((rows, self.out_features))
        gemm = self._held_gemm if rows < self._held_rows else self._gemm
        gemm(
            x.data_ptr(), self._pointer, self._bias_pointer, y.data_ptr(), rows, self.out_features, self.in_features,
            self.half, get_num_threads(),
        )  # fmt: skip
        return y

    def rows(self, ids: Tensor) -> Tensor:
        """Returns the rows `ids` (int64 [n]) of the weight, float32 [n, in_features]. Raises IndexError for an id that
        is out of range."""
        ids = check_ids(ids, self.out_features)
        out = self._words.new_empty((len(ids), self.in_features), dtype=torch.float32)
        self._lookup(
            ids.data_ptr(), self._pointer, out.data_ptr(), len(ids), self.out_features, self.in_features, self.half,
            get_num_threads(),
        )  # fmt: skip
        return out
