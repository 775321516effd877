"""Swap space has a default on GPUs, and never more than the host has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from services.worker import host_memory
from services.worker.config import WorkerConfig
from services.worker.errors import ModelError
from services.worker.host_memory import GIB, available_bytes, swap_bytes
from services.worker.kv_cache import block_bytes, count_host_blocks
from services.worker.models.config import read_model_config
from tests.unit.worker.tiny_models import save_model


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of a host with 64 GiB available, outside of any container."""
    monkeypatch.setattr(host_memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(host_memory, "_CGROUP", tmp_path)
    (tmp_path / "meminfo").write_text(f"MemTotal: 99 kB\nMemFree: 1 kB\nMemAvailable: {64 * 2**20} kB\nCached: 2 kB\n")
    return tmp_path


@pytest.mark.usefixtures("host")
def test_a_gpu_has_4_gib_by_default_and_a_cpu_none() -> None:
    assert swap_bytes(None, "cuda") == 4 * GIB
    assert swap_bytes(None, "cpu") == 0
    assert swap_bytes(0.5, "cpu") == swap_bytes(0.5, "cuda") == GIB // 2


def test_the_default_leaves_most_of_a_small_host_and_of_a_container(host: Path) -> None:
    (host / "meminfo").write_text(f"MemAvailable: {8 * 2**20} kB\n")
    assert swap_bytes(None, "cuda") == 2 * GIB
    (host / "memory.max").write_text(f"{6 * GIB}\n")
    (host / "memory.current").write_text(f"{2 * GIB}\n")
    assert swap_bytes(None, "cuda") == GIB
    (host / "memory.max").write_text("max\n")
    assert swap_bytes(None, "cuda") == 2 * GIB


@pytest.mark.usefixtures("host")
def test_more_than_the_host_has_stops_the_start() -> None:
    with pytest.raises(ModelError, match=r"--swap-space is 65 GiB, but this host has 64\.0 GiB of memory available"):
        swap_bytes(65, "cuda")


def test_where_nothing_is_known_the_option_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "_MEMINFO", tmp_path / "none")
    monkeypatch.setattr(host_memory, "_CGROUP", tmp_path / "none")

    assert (available_bytes(), swap_bytes(None, "cuda"), swap_bytes(9, "cpu")) == (None, 4 * GIB, 9 * GIB)


@pytest.mark.usefixtures("host")
def test_blocks_in_the_swap_space_are_counted_for_the_device(tmp_path: Path) -> None:
    save_model(tmp_path, "Llama")
    model, config = read_model_config(tmp_path), WorkerConfig(block_size=8)
    on = {name: count_host_blocks(config, model, torch.float32, torch.device(name)) for name in ("cpu", "cuda")}

    assert on == {"cpu": 0, "cuda": 4 * GIB // block_bytes(model, 8, torch.float32)}
