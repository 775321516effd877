"""What can go wrong in a worker, by who has to act."""

from __future__ import annotations

_MAX_CHARS = 1000


class ModelError(RuntimeError):
    """The model cannot be loaded or served as configured; the message is a sentence for the person who started it, in
    one line, whatever it quotes."""

    def __init__(self, message: str) -> None:
        line = " ".join(message.split())
        super().__init__(line if len(line) <= _MAX_CHARS else f"{line[:_MAX_CHARS]}…")


class PinningError(ModelError):
    """The operating system or CUDA refuses to pin host memory for swap space."""


class StepThreadError(RuntimeError):
    """The thread that runs the steps has died, and with it the process's use; the message is a sentence."""


class DeviceLostError(RuntimeError):
    """The device answers no call of this process any more; the message is a sentence that names the reason."""


class PlanError(ValueError):
    """A plan breaks the contract of `worker.proto`: the scheduler and this worker disagree about the epoch's state."""
