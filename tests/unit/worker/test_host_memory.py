"""Swap space has a default on GPUs, and never more than the host has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from services.worker import weights
from services.worker.config import WorkerConfig
from services.worker.errors import ModelError
from services.worker.models.config import read_model_config
from services.worker.models.size import weight_bytes
from services.worker.pages import host_memory
from services.worker.pages.host_memory import SwapSpace, resolve_swap_space
from services.worker.pages.kv_cache import block_bytes, count_host_blocks, default_cpu_budget
from services.worker.startup import decoder as start
from services.worker.startup.load import load_worker
from shared import host_memory as memory_files
from shared.host_memory import GIB, Available, available_memory
from tests.unit.worker.tiny_models import save_model
from tests.unit.worker.triton.simulated_worker import write_tokenizer


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of a host with 64 GiB available, outside of any container."""
    monkeypatch.setattr(memory_files, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory_files, "_CGROUP", tmp_path)
    total, available = 99 * 2**20, 64 * 2**20
    (tmp_path / "meminfo").write_text(
        f"MemTotal: {total} kB\nMemFree: 1 kB\nMemAvailable: {available} kB\nCached: 2 kB\n"
    )
    return tmp_path


def swap_bytes(option: float | None, device_type: str) -> int:
    return resolve_swap_space(option, device_type).num_bytes


def limit_container(host: Path, limit: str, used: int, cached: int = 0) -> None:
    """By control groups v2."""
    (host / "memory.max").write_text(f"{limit}\n")
    (host / "memory.current").write_text(f"{used}\n")
    statistics = (
        f"anon {used - cached}\nfile {cached}\ninactive_file {cached - cached // 4}\nactive_file {cached // 4}\n"
    )
    (host / "memory.stat").write_text(statistics)


@pytest.mark.usefixtures("host")
def test_a_gpu_has_4_gib_by_default_and_a_cpu_none() -> None:
    assert swap_bytes(None, "cuda") == 4 * GIB
    assert swap_bytes(None, "cpu") == 0
    assert swap_bytes(0.5, "cpu") == swap_bytes(0.5, "cuda") == GIB // 2


def test_the_default_leaves_most_of_a_small_host_and_of_a_container(
    host: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (host / "meminfo").write_text(f"MemAvailable: {8 * 2**20} kB\n")
    assert swap_bytes(None, "cuda") == 2 * GIB
    limit_container(host, str(6 * GIB), 2 * GIB)
    assert swap_bytes(None, "cuda") == GIB
    limit_container(host, "max", 2 * GIB)
    assert swap_bytes(None, "cuda") == 2 * GIB
    assert [record.message.split(",")[0] for record in caplog.records] == [
        "the swap space is 2.0 GiB instead of 4.0: this host has 8.0 GiB of memory available",
        "the swap space is 1.0 GiB instead of 4.0: this container has 4.0 GiB of memory available",
        "the swap space is 2.0 GiB instead of 4.0: this host has 8.0 GiB of memory available",
    ]


@pytest.mark.parametrize("version", [1, 2])
def test_files_that_a_container_has_cached_are_available(host: Path, version: int) -> None:
    """As after 16 GiB of weights have been read in a container of 20."""
    if version == 2:
        limit_container(host, str(20 * GIB), 18 * GIB, cached=16 * GIB)
    else:
        (host / "memory").mkdir()
        (host / "memory/memory.limit_in_bytes").write_text(f"{20 * GIB}\n")
        (host / "memory/memory.usage_in_bytes").write_text(f"{18 * GIB}\n")
        fields = {"inactive_file": 1, "total_inactive_file": 12 * GIB, "total_active_file": 4 * GIB}
        (host / "memory/memory.stat").write_text("".join(f"{name} {value}\n" for name, value in fields.items()))
    assert available_memory() == Available(18 * GIB, "this container")
    assert swap_bytes(4, "cuda") == swap_bytes(None, "cuda") == 4 * GIB
    with pytest.raises(
        ModelError, match=r"--swap-space takes 19\.0 GiB, but this container has 18\.0 GiB of memory available"
    ):
        swap_bytes(19, "cuda")


@pytest.mark.usefixtures("host")
def test_too_much_is_refused_before_the_model_is_looked_for() -> None:
    with pytest.raises(ModelError, match=r"--swap-space takes 65\.0 GiB"):
        load_worker(WorkerConfig(model="/nowhere/model", device="cpu", swap_space=65.0), lambda *_: None)


def test_weights_that_have_taken_the_memory_count(host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU they lie in the memory that the swap space was to take."""
    save_model(tmp_path, "Llama", num_hidden_layers=1)
    write_tokenizer(tmp_path)
    decoder = weights.load_decoder

    def take_memory(*arguments: Any) -> Any:
        (host / "meminfo").write_text("MemAvailable: 1024 kB\n")
        return decoder(*arguments)

    monkeypatch.setattr(start, "load_decoder", take_memory)
    config = WorkerConfig(model=str(tmp_path), device="cpu", num_threads=1, swap_space=0.5, num_gpu_blocks_override=4)
    with pytest.raises(ModelError, match=r"--swap-space takes 0\.5 GiB, but this host has 1\.0 MiB"):
        load_worker(config, lambda *_: None)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            {"kv_cache_memory_bytes": 200 * 10**9},
            r"--kv-cache-memory-bytes takes 186\.3 GiB, but .* 64\.0 GiB .* lower it",
        ),
        (
            {"num_gpu_blocks_override": 10**9},
            r"--num-gpu-blocks-override takes [0-9,.]+ GiB, but this host has 64\.0 GiB",
        ),
        (
            {"kv_cache_memory_bytes": 40 * GIB, "swap_space": 30.0},
            r"--kv-cache-memory-bytes takes 40\.0 GiB and --swap-space takes 30\.0 GiB, but .* lower them",
        ),
    ],
)
@pytest.mark.usefixtures("host")
def test_a_kv_cache_that_cannot_be_had_is_refused_before_weights_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], complaint: str
) -> None:
    save_model(tmp_path, "Llama", num_hidden_layers=1)
    write_tokenizer(tmp_path)
    monkeypatch.setattr(start, "open_weights", lambda *_: pytest.fail("weights are read"))
    config = WorkerConfig(model=str(tmp_path), device="cpu", num_threads=1, **options)
    with pytest.raises(ModelError, match=complaint):
        load_worker(config, lambda *_: None)


def test_the_default_kv_cache_takes_half_of_what_weights_and_swap_space_leave(
    host: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert default_cpu_budget(9 * GIB, SwapSpace(9 * GIB)).num_bytes == GIB
    assert not caplog.records
    limit_container(host, str(5 * GIB), GIB)
    assert default_cpu_budget(0, SwapSpace(int(3.5 * GIB))).num_bytes == GIB // 4
    assert default_cpu_budget(GIB, SwapSpace(2 * GIB)).num_bytes == GIB // 2
    assert default_cpu_budget(5 * GIB, SwapSpace(0)).num_bytes == 0
    assert [record.message.split("; ")[0] for record in caplog.records] == [
        f"the KV cache is {size} instead of 1.0 GiB: this container has 4.0 GiB of memory available, weights and swap "
        f"space leave {left}, and the default takes half of that at most"
        for size, left in (("0.2 GiB", "0.5 GiB"), ("0.5 GiB", "1.0 GiB"), ("0.0 MiB", "0.0 MiB"))
    ]


def test_workers_of_one_host_share_what_their_defaults_take(host: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert resolve_swap_space(None, "cuda", 4).num_bytes == 4 * GIB, "a quarter of 64 GiB is 4 GiB for each of 4"
    assert default_cpu_budget(GIB, SwapSpace(GIB), 4).num_bytes == GIB
    assert not caplog.records
    assert resolve_swap_space(None, "cuda", 8).num_bytes == 2 * GIB
    assert default_cpu_budget(6 * GIB, SwapSpace(GIB), 8).num_bytes == GIB // 2, "half of 8 - 6 - 1 GiB"
    assert "and the default of 8 workers takes a quarter at most" in caplog.records[0].message
    assert "this host has 8.0 GiB of memory available for each worker" in caplog.records[1].message
    assert resolve_swap_space(5, "cuda", 8).num_bytes == 5 * GIB, "what an option says is each worker's own"


def test_a_worker_beside_those_of_other_models_keeps_to_its_share(host: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert default_cpu_budget(6 * GIB, SwapSpace(0), 20, 9 * GIB).num_bytes == GIB, "a 20th of the host is 3.2 GiB"
    assert default_cpu_budget(6 * GIB, SwapSpace(0), 2, 7 * GIB).num_bytes == GIB // 2
    assert "this host has 7.0 GiB of memory available for this worker" in caplog.records[0].message


def test_the_default_kv_cache_is_what_it_was_before_the_weights_were_read(
    host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A length that fits it then fails no start after minutes of loading."""
    save_model(tmp_path, "Llama", num_hidden_layers=1)
    write_tokenizer(tmp_path)
    model = read_model_config(tmp_path)
    decoder = weights.load_decoder

    def take_memory(*arguments: Any) -> Any:
        (host / "meminfo").write_text("MemAvailable: 16 kB\n")
        return decoder(*arguments)

    monkeypatch.setattr(start, "load_decoder", take_memory)
    (host / "meminfo").write_text(f"MemAvailable: {64 * 1024} kB\n")
    config = WorkerConfig(
        model=str(tmp_path), device="cpu", num_threads=1, swap_space=0.0, max_model_len=model.max_model_len
    )
    limits = load_worker(config, lambda *_: None).runner.limits
    left = 64 * 2**20 - weight_bytes(model, 4)
    assert limits.num_blocks == left // 2 // block_bytes(model, config.block_size, torch.float32)
    assert limits.max_model_len == model.max_model_len


@pytest.mark.usefixtures("host")
def test_more_than_the_host_has_stops_the_start() -> None:
    with pytest.raises(
        ModelError, match=r"--swap-space takes 65\.0 GiB, but this host has 64\.0 GiB of memory available"
    ):
        swap_bytes(65, "cuda")


def test_where_nothing_is_known_the_option_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_files, "_MEMINFO", tmp_path / "none")
    monkeypatch.setattr(memory_files, "_CGROUP", tmp_path / "none")

    assert (available_memory(), swap_bytes(None, "cuda"), swap_bytes(9, "cpu")) == (None, 4 * GIB, 9 * GIB)


def test_the_swap_space_is_counted_in_blocks(tmp_path: Path) -> None:
    save_model(tmp_path, "Llama")
    model, config = read_model_config(tmp_path), WorkerConfig(block_size=8)
    swaps = {size: count_host_blocks(SwapSpace(size), config, model, torch.float32) for size in (0, 4 * GIB)}

    assert swaps == {0: 0, 4 * GIB: 4 * GIB // block_bytes(model, 8, torch.float32)}


def test_weights_that_no_host_or_container_could_hold_are_refused(host: Path) -> None:
    (host / "meminfo").write_text("MemTotal: 8388608 kB\nMemAvailable: 1024 kB\nSwapTotal: 2097152 kB\n")
    host_memory.require_memory(10 * GIB, "the weights of m")
    with pytest.raises(ModelError, match=r"the weights of m take 10\.1 GiB, but this host has 10\.0 GiB of memory"):
        host_memory.require_memory(int(10.1 * GIB), "the weights of m")
    host_memory.require_memory(5 * GIB, "the weights of m", 2)
    with pytest.raises(ModelError, match=r"take 4\.0 GiB for each of 3 workers, but this host has 10\.0 GiB"):
        host_memory.require_memory(4 * GIB, "the weights of m", 3)
    (host / "memory.max").write_text(f"{4 * GIB}\n")
    with pytest.raises(ModelError, match=r"but this container has 4\.0 GiB of memory"):
        host_memory.require_memory(5 * GIB, "the weights of m")
    (host / "memory.max").write_text("max\n")
    host_memory.require_memory(5 * GIB, "the weights of m")
    (host / "meminfo").unlink()
    host_memory.require_memory(1 << 60, "the weights of m")
