"""The number of parts of each kind in a stack, and their names."""

from __future__ import annotations

from dataclasses import dataclass

from shared.config import ConfigError, option

MAX_PARTS = 64  # of each kind


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """Numbers of parts. `num_routers`, `num_schedulers` and `num_workers` have the numbers, whichever option set them.
    Those of schedulers and workers are numbers for each model."""

    routers: int | None = option(
        None, "Number of routers. Each adds a process for APIs and text. If left out, 1.", minimum=1, maximum=MAX_PARTS
    )
    schedulers: int | None = option(
        None,
        "Number of schedulers of each model, which share its workers. One that has no worker stands by for the others. "
        "If left out, 1.",
        minimum=1,
        maximum=MAX_PARTS,
    )
    workers: int | None = option(
        None,
        "Number of workers of each model, each with the whole model: on its own GPU, or with its share of the CPU "
        "cores. If left out, 1.",
        minimum=1,
        maximum=MAX_PARTS,
    )
    api_server_count: int | None = option(None, "vLLM's name of --routers.", minimum=1, maximum=MAX_PARTS, short="-asc")
    data_parallel_size: int | None = option(
        None, "vLLM's name of --workers.", minimum=1, maximum=MAX_PARTS, short="-dp"
    )
    data_parallel_size_local: int | None = option(
        None, "In vLLM, the number of workers on this host; here the same as --workers.", short="-dpl"
    )

    def __post_init__(self) -> None:
        for name, number, other, other_number in (
            ("--routers", self.routers, "--api-server-count", self.api_server_count),
            ("--workers", self.workers, "--data-parallel-size", self.data_parallel_size),
        ):
            if number is not None and other_number is not None and number != other_number:
                raise ConfigError(f"{name} is {number} and {other} is {other_number}: both mean the same, so give one")
        if self.data_parallel_size_local not in (None, self.num_workers):
            raise ConfigError(
                f"--data-parallel-size-local is {self.data_parallel_size_local}, but there are {self.num_workers} "
                "workers (--workers, --data-parallel-size): quire serve runs all of them on this host. For several "
                "hosts, start the parts one by one (docs/operations.md)"
            )

    @property
    def num_routers(self) -> int:
        return self.routers or self.api_server_count or 1

    @property
    def num_schedulers(self) -> int:
        return self.schedulers or 1

    @property
    def num_workers(self) -> int:
        return self.workers or self.data_parallel_size or 1


def part_names(kind: str, count: int) -> tuple[str, ...]:
    """Returns the names of `count` parts of one kind. A single part has the name of its kind, such as worker. Several
    parts are numbered from 0: worker-0, worker-1. The name is that of the part's line in the display and in messages,
    and of its socket: worker-0.sock."""
    return (kind,) if count == 1 else tuple(f"{kind}-{index}" for index in range(count))
