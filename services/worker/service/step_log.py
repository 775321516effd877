"""The step log: a file with one line of JSON per step, to find out how a device spends its time."""

from __future__ import annotations

import json
import logging
import time
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from services.worker.plan import StepResult

logger = logging.getLogger(__name__)

FLUSH_INTERVAL_S = 1.0


class StepLog:
    """Writes the lines of the step log. Used only on the step thread. The lines are buffered, and reach the file about
    once per second while steps run. After the first write error, the log is closed with a warning, and steps continue
    without it."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if the file cannot be written."""
        self._path = path
        self._file: TextIO | None = path.open("a", encoding="utf-8", buffering=1 << 20)
        self._flushed_at = time.monotonic()

    def write(self, result: StepResult, num_sequences: int) -> None:
        """Writes the line of a step. `num_sequences`: number of sequences that held a slot after the step's plan was
        applied."""
        if self._file is None:
            return
        now, device = time.monotonic(), result.device
        entry = {
            "time_s": round(now, 6),  # monotonic time at which the results arrived
            "step": result.step_id,
            "sequences": num_sequences,
            "scheduled_tokens": result.num_scheduled_tokens,
            "sampled_tokens": len(result.token_ids),
            "queue_us": result.queue_us,
            "run_us": result.run_us,
            "device_idle_us": None if device is None else round(device.idle * 1e6, 1),
            "device_busy_us": None if device is None else round(device.busy * 1e6, 1),
        }
        try:
            self._file.write(json.dumps(entry) + "\n")
            if now - self._flushed_at > FLUSH_INTERVAL_S:
                self._file.flush()
                self._flushed_at = now
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        if self._file is None:
            return
        try:
            self._file.close()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        logger.warning("cannot write to the step log %s any more: %s", self._path, error)
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # close() tries once more to write the buffer
                file.close()
