"""What a worker tells at its start."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from services.worker.config import WorkerConfig
from services.worker.notices import tell_blocks, warn_of_options
from services.worker.plan.batch import Limits
from shared.status import StatusReporter, parse_status


def notes(tell: Callable[[StatusReporter], None]) -> list[str]:
    read, write = os.pipe()
    tell(StatusReporter(write))
    os.close(write)
    with os.fdopen(read) as lines:
        statuses = [parse_status(line) for line in lines]
    assert all(status.is_note for status in statuses)
    return [status.detail for status in statuses]


def test_blocks_are_told_as_vllm_does(caplog: pytest.LogCaptureFixture) -> None:
    limits = Limits(27896, 16, 256, 2048, 4096, 128256, num_host_blocks=2048)

    with caplog.at_level("INFO"):
        assert notes(lambda status: tell_blocks(limits, "cuda", status)) == ["# GPU blocks: 27896, # CPU blocks: 2048"]
        assert notes(lambda status: tell_blocks(limits, "cpu", status)) == ["# CPU blocks: 27896, # swap blocks: 2048"]
    assert caplog.messages == ["# GPU blocks: 27896, # CPU blocks: 2048", "# CPU blocks: 27896, # swap blocks: 2048"]


def test_more_than_97_percent_of_a_gpu_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    def warn(utilization: float, device: str = "cuda") -> list[str]:
        config = WorkerConfig(gpu_memory_utilization=utilization)
        return notes(lambda status: warn_of_options(config, device, status))

    assert warn(0.97) == warn(0.98, "cpu") == []
    (told,) = warn(0.98)
    assert told.startswith("--gpu-memory-utilization is 0.98: above 0.97 the GPU may run out of memory")
    assert caplog.messages == [told]
