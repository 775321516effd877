"""Errors of a worker. The class tells who has to act: the operator (ModelError), the process supervisor
(StepThreadError, DeviceLostError) or the scheduler (PlanError).
"""

from __future__ import annotations

_MAX_CHARS = 1000


class ModelError(RuntimeError):
    """The model cannot be loaded or served as configured. The message is one line for the operator:
    line breaks in texts that it quotes become spaces, and a long message is cut."""

    def __init__(self, message: str) -> None:
        line = " ".join(message.split())
        super().__init__(line if len(line) <= _MAX_CHARS else f"{line[:_MAX_CHARS]}…")


class PinningError(ModelError):
    """The operating system or CUDA refuses to pin host memory for swap space."""


class StepThreadError(RuntimeError):
    """The step thread died, so the process cannot serve any more. The message is one sentence."""


class DeviceLostError(RuntimeError):
    """The device no longer answers calls of this process. The message is one sentence and names the reason."""


class PlanError(ValueError):
    """A plan breaks the contract of `worker.proto`, so the scheduler and the worker disagree about the state of the
    epoch (the time from a scheduler's claim of the worker to the end of its stream)."""
