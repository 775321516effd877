"""A file with a line of JSON per step, for finding out where a device's time goes."""

from __future__ import annotations

import json
import time
from pathlib import Path

from services.worker.plan import StepResult

FLUSH_INTERVAL_S = 1.0


class StepLog:
    """Written by the step thread alone. Lines reach the file at least once per second while steps run, and at the
    end."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if the file cannot be written."""
        self._file = path.open("a", encoding="utf-8", buffering=1 << 20)
        self._flushed_at = time.monotonic()

    def write(self, result: StepResult, num_sequences: int) -> None:
        """`num_sequences`: in slots once the step had been applied."""
        now, device = time.monotonic(), result.device
        entry = {
            "time_s": round(now, 6),  # monotonic, when the results were there
            "step": result.step_id,
            "sequences": num_sequences,
            "scheduled_tokens": result.num_scheduled_tokens,
            "sampled_tokens": len(result.token_ids),
            "queue_us": result.queue_us,
            "run_us": result.run_us,
            "device_idle_us": None if device is None else round(device.idle * 1e6, 1),
            "device_busy_us": None if device is None else round(device.busy * 1e6, 1),
        }
        self._file.write(json.dumps(entry) + "\n")
        if now - self._flushed_at > FLUSH_INTERVAL_S:
            self._file.flush()
            self._flushed_at = now

    def close(self) -> None:
        self._file.close()
