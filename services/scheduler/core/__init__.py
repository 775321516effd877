"""Every decision of the scheduler, and nothing else: no sockets, no clocks, no tensors.

The shell talks to one `Scheduler` per worker group (`scheduler.py`: requests, steps, results). A step is made in a
`batch.py` of decodes, for which others may have to give way (`preemption.py`), chunks of prompts, as many as its
`budget.py` allows, and sequences that start (`admission.py`). `outcome.py` says what its result means, `losses.py` what
becomes of sequences whose worker is lost. Below are `roster.py` (where every sequence is: waiting, set aside, running),
`waiting.py` (whose turn it is), `preparations.py` (what workers prepare beside their steps), `pacing.py` (how long
steps take, and what follows from that), and `kv_memory.py` with `block_pool.py`, `prefix_cache.py` and `host_pool.py`
(where keys and values are).
"""
