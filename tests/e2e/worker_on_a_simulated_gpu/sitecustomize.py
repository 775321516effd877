"""Gives a worker a simulated GPU. Python runs this file at the start of every process that has it on its path."""

from __future__ import annotations

import sys
import threading

if "worker" in sys.orig_argv:
    from tests.interpreter import complete_the_interpreter
    from tests.simulated_gpu import SimulatedGPU

    complete_the_interpreter()
    gpu = SimulatedGPU(total_bytes=1 << 30)
    running = gpu.running()  # kept, because its end would remove the GPU
    running.__enter__()
    run = threading.Thread.run

    def run_with_gpu(thread: threading.Thread) -> None:
        if thread.name == "steps":
            gpu.join_thread()
        run(thread)

    threading.Thread.run = run_with_gpu  # type: ignore[method-assign, assignment]
