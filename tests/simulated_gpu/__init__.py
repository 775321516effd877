"""A GPU for machines that have none: tensors in host memory that say "cuda", under the rules that a real one has.

Kernels run in Triton's interpreter and torch's operations on the host, so values are right and nothing is fast.
`torch.cuda` is torch's own Python over stand-ins for its compiled functions (`runtime.py`), so it refuses the arguments
that it refuses on a GPU. What the interpreter alone would let pass is refused:

- An operation takes tensors of the device, or scalars; a kernel takes tensors of the device, or pinned ones.
- What is allocated holds rubbish, and there is only so much memory.
- A copy that nobody waits for arrives late. Until an event after it is waited for, the host reads rubbish where the
  result is to be, and what the host sends must stay as it is.
- A graph that is recorded runs nothing. Replayed, it launches the same operations on the same memory, and no code of
  the host's.
- After `die_in` launches the device is lost, as after an illegal access: whatever touches it raises, for good.
- In `rules_of_serving`, nothing waits for the device but an event, and no kernel comes in a form that Triton would
  compile anew.

Not simulated: several streams (all work is in the order of its launch), copies to and from the host inside of a graph
(refused), lists as indices (they fail), memory that graphs or the allocator keep, addresses that a kernel is given as
numbers, which of torch's kernels runs and what it compiles or tunes when it runs first, the device's own rounding and
atomics, and time.
"""

from __future__ import annotations

from tests.simulated_gpu.gpu import SimulatedGPU
from tests.simulated_gpu.runtime import pretend_properties
from tests.simulated_gpu.tensors import RefusedError

__all__ = ["RefusedError", "SimulatedGPU", "pretend_properties"]
