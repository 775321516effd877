"""Graphs without CUDA: a launch is remembered as the call that made it."""

from __future__ import annotations

from collections.abc import Callable

from services.worker.step.graphs import Replay


class RememberingRecorder:
    """Replays by calling again what was recorded, and counts: as with a graph, nothing can be passed to it, so what
    differs from step to step must lie where it did."""

    def __init__(self) -> None:
        self.num_recorded = 0
        self.replayed: list[int] = []  # by the number of the recording

    def record(self, run: Callable[[], None]) -> Replay:
        run()
        number = self.num_recorded
        self.num_recorded += 1

        def replay() -> None:
            self.replayed.append(number)
            run()

        return replay
