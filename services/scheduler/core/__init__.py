"""Every decision of the scheduler, and nothing else: no sockets, no clocks, no tensors.

The shell talks to one `Scheduler` per worker group (`scheduler.py`: what a step contains). Below it are `roster.py`
(where every sequence is: waiting, set aside, running), `waiting.py` (whose turn it is), `pacing.py` (how long steps
take, and what follows from that), and `kv_memory.py` with `block_pool.py`, `prefix_cache.py` and `host_pool.py` (where
keys and values are).
"""
