"""Every decision of the scheduler, and nothing else: no sockets, no clocks, no tensors.

The shell calls `submit`, `abort`, `expire`, `schedule` and `apply` on one `Scheduler` per worker group; state changes
only there.
"""
