"""The speed and memory of a worker group, as measured by `quire calibrate`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.scheduler.core import CoreConfig, RequestT, StepPlan, pairs

Matrix = NDArray[np.float64]
# Maximum median relative error of a fit. Simulations with a poorer fit are meaningless.
TRUSTED_ERROR = 0.25


class DeviceError(ValueError):
    """A device file that cannot be read."""


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """A linear model of a step's duration: seconds = base + per_token · tokens + per_sequence · sampling sequences +
    per_kv_token · positions read + per_pair · pairs.

    Positions read: the positions of each sequence's KV cache, counted once per sequence, however many of its tokens the
    step computes. Pair: a computed token and a position that it attends to. A decode reads many positions for little
    arithmetic; a prompt chunk reads few positions for much arithmetic.
    """

    base: float
    per_token: float
    per_sequence: float
    per_kv_token: float
    per_pair: float

    def of(self, plan: StepPlan[RequestT]) -> float:
        rows = plan.rows
        if not rows:  # the plan only releases sequences
            return 0.0
        num_tokens = plan.num_tokens
        return (
            self.base
            + self.per_token * num_tokens
            + self.per_sequence * len(plan.sampling_wire_ids)
            + self.per_kv_token * (sum(rows.num_computed_tokens) + num_tokens)
            + self.per_pair * plan.num_pairs
        )

    def of_prompt(self, num_tokens: int) -> float:
        """Returns the seconds of a step that computes one whole prompt and nothing else."""
        per_token = self.per_token + self.per_kv_token
        return self.base + self.per_sequence + per_token * num_tokens + self.per_pair * pairs(0, num_tokens)

    @classmethod
    def fit(cls, features: Matrix, seconds: Matrix) -> StepSeconds:
        """Fits the model by least squares of the relative errors. No coefficient is negative.

        `features` [steps, 5] in the order of the fields, `seconds` [steps]. More work never takes less time, so terms
        with a negative coefficient are removed one by one, the most negative first.
        """
        weighted = features / seconds[:, None]
        scale = np.maximum(np.abs(weighted).max(axis=0), 1e-12)
        used = list(range(features.shape[1]))
        while True:
            solution = np.linalg.lstsq(weighted[:, used] / scale[used], np.ones(len(seconds)), rcond=None)[0]
            if solution.min() >= 0:
                break
            del used[int(solution.argmin())]
        weights = np.zeros(features.shape[1])
        weights[used] = solution / scale[used]
        return cls(*(float(weight) for weight in weights))

    def predict(self, features: Matrix) -> Matrix:
        """Returns the predicted seconds [steps] of steps. `features`: [steps, 5], in the order of the fields."""
        weights: Matrix = np.array([getattr(self, term.name) for term in fields(self)])
        return features @ weights


@dataclass(frozen=True, slots=True)
class Device:
    """The measured properties of one worker group."""

    step: StepSeconds
    num_blocks: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_host_blocks: int = 0
    swap_seconds_per_block: float = 0.0
    # How the figures were measured: device, model, versions, date, errors of the fit. Does not affect the simulation;
    # only the warning `distrust` uses it.
    origin: dict[str, str | float] = field(default_factory=dict)

    def core_config(
        self, *, num_blocks: int | None = None, max_model_len: int | None = None, **limits: Any
    ) -> CoreConfig:
        """Builds the configuration that a scheduler would derive from this worker group. `limits`: fields of CoreConfig
        that replace the derived values."""
        num_blocks = num_blocks or self.num_blocks
        max_num_batched_tokens = limits.pop("max_num_batched_tokens", None) or self.max_num_batched_tokens
        max_num_seqs = limits.pop("max_num_seqs", None) or self.max_num_seqs
        return CoreConfig(
            num_blocks=num_blocks,
            block_size=self.block_size,
            max_num_seqs=min(max_num_seqs, max_num_batched_tokens),
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=min(max_model_len or self.max_model_len, num_blocks * self.block_size),
            num_host_blocks=self.num_host_blocks,
            seconds_per_swapped_block=self.swap_seconds_per_block,
            **limits,
        )

    @property
    def distrust(self) -> str:
        """Returns why the step times cannot be trusted, or an empty string if they can."""
        error = self.origin.get("median_error", 0.0)
        if not isinstance(error, (int, float)) or error <= TRUSTED_ERROR:
            return ""
        return (
            f"the step times cannot be trusted: half of the measured steps are more than {error:.0%} off the fit. "
            "Calibrate again while no other program runs on the machine."
        )

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")


def read_device(path: Path) -> Device:
    """Reads a device file, as written by `quire calibrate`. Raises DeviceError."""
    try:
        values = json.loads(path.read_text())
        return Device(**{**values, "step": StepSeconds(**values["step"])})
    except OSError as error:
        raise DeviceError(f"{path}: {error.strerror}") from error
    except (TypeError, KeyError, ValueError) as error:
        raise DeviceError(f"{path} is not a device file of `quire calibrate`: {error}") from error
