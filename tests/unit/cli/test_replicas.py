"""Stacks with several routers, schedulers and workers: their commands, and the checks before their start."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from quire.cli import host_share
from quire.cli.gpus import visible_gpus
from quire.cli.part import PartSpec
from quire.cli.stack import part_specs
from quire.cli.stack_options import build_stack
from shared.config import ConfigError
from shared.host_memory import GIB, Available

RUN = Path("/run/q")


def specs(**flags: object) -> dict[str, PartSpec]:
    return {spec.name: spec for spec in part_specs(build_stack(flags, {}), RUN)}


def values(spec: PartSpec, flag: str) -> list[str]:
    """The values of a flag in a part's command, written as two words or with =."""
    found = []
    for word, following in zip(spec.argv, (*spec.argv[1:], ""), strict=True):
        name, equals, value = word.partition("=")
        if name == flag:
            found.append(value if equals else following)
    return found


def sockets(*names: str) -> list[str]:
    return [f"unix:{RUN}/{name}.sock" for name in names]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The host's GPUs: none at first."""
    found: list[str] = []
    monkeypatch.setattr(host_share, "visible_gpus", lambda _: tuple(found))
    return found


@pytest.mark.usefixtures("gpus")
def test_each_part_knows_all_parts_of_the_kind_that_it_calls() -> None:
    parts = specs(routers="2", schedulers="2", workers="3")

    assert list(parts) == [
        *("gateway", "router-0", "router-1", "scheduler-0", "scheduler-1", "worker-0", "worker-1", "worker-2"),
    ]
    assert values(parts["gateway"], "--router") == sockets("router-0", "router-1")
    for name in ("router-0", "router-1"):
        assert values(parts[name], "--listen") == sockets(name)
        assert values(parts[name], "--scheduler") == sockets("scheduler-0", "scheduler-1")
    for name in ("scheduler-0", "scheduler-1"):
        assert values(parts[name], "--listen") == sockets(name)
        assert values(parts[name], "--worker") == sockets("worker-0", "worker-1", "worker-2")
    for name in ("worker-0", "worker-1", "worker-2"):
        assert values(parts[name], "--listen") == sockets(name)
        assert values(parts[name], "--workers-on-host") == ["3"]


@pytest.mark.usefixtures("gpus")
def test_a_metrics_port_does_not_depend_on_the_number_of_other_parts() -> None:
    parts = specs(routers="2", schedulers="1", workers="3", metrics_port="9100")

    assert {name: values(spec, "--metrics-port") for name, spec in parts.items()} == {
        "gateway": ["9100"],
        "router-0": ["9101"],
        "router-1": ["9105"],
        "scheduler": ["9102"],
        "worker-0": ["9103"],
        "worker-1": ["9107"],
        "worker-2": ["9111"],
    }


@pytest.mark.usefixtures("gpus")
def test_each_worker_writes_a_step_log_of_its_own() -> None:
    assert values(specs(step_log="/var/steps.jsonl")["worker"], "--step-log") == ["/var/steps.jsonl"]
    parts = specs(step_log="/var/steps.jsonl", workers="2")
    assert [values(parts[f"worker-{i}"], "--step-log") for i in range(2)] == [
        ["/var/steps-0.jsonl"],
        ["/var/steps-1.jsonl"],
    ]


@pytest.mark.usefixtures("gpus")
def test_the_start_waits_for_every_part_but_for_schedulers_that_may_have_no_worker() -> None:
    awaited = [name for name, spec in specs(routers="2", schedulers="2", workers="2").items() if spec.is_awaited]
    assert awaited == ["gateway", "router-0", "router-1", "worker-0", "worker-1"]
    assert all(spec.is_awaited for spec in specs().values())


@pytest.mark.parametrize(
    "flags",
    [{"workers": "2"}, {"data_parallel_size": "2"}, {"data_parallel_size": "2", "data_parallel_size_local": "2"}],
)
@pytest.mark.usefixtures("gpus")
def test_vllms_name_of_the_number_of_workers_means_the_same(flags: dict[str, object]) -> None:
    assert len(build_stack(flags, {}).names("worker")) == 2


@pytest.mark.usefixtures("gpus")
def test_the_numbers_come_from_the_environment_and_the_file_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_WORKERS", "2")
    stack = build_stack({}, {"schedulers": 3, "api-server-count": 4})
    assert [len(stack.names(kind)) for kind in ("gateway", "router", "scheduler", "worker")] == [1, 4, 3, 2]


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"workers": "0"}, "--workers is 0: use at least 1"),
        ({"schedulers": "65"}, "--schedulers is 65: use at most 64"),
        (
            {"workers": "2", "data_parallel_size": "3"},
            "--workers is 2 and --data-parallel-size is 3: both mean the same",
        ),
        ({"routers": "2", "api_server_count": "3"}, "--routers is 2 and --api-server-count is 3: both mean the same"),
        ({"data_parallel_size": "4", "data_parallel_size_local": "2"}, "quire serve runs all of them on this host"),
        ({"data_parallel_rank": "1"}, "--data-parallel-rank cannot be used: for several hosts, start the parts one by"),
        (
            {"metrics_port": "65530", "workers": "2"},
            "--metrics-port is 65530, so the parts would use ports up to 65537",
        ),
        ({"metrics_port": "65533"}, "--metrics-port is 65533, so the parts would use ports up to 65536; lower it"),
    ],
)
@pytest.mark.usefixtures("gpus")
def test_a_bad_number_is_told(flags: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        build_stack(flags, {})


def test_each_worker_gets_a_gpu_of_its_own(gpus: list[str]) -> None:
    gpus += ["GPU-a", "GPU-b", "GPU-c"]
    parts = specs(workers="2")

    assert [dict(parts[f"worker-{i}"].environment) for i in range(2)] == [
        {"CUDA_VISIBLE_DEVICES": "GPU-a"},
        {"CUDA_VISIBLE_DEVICES": "GPU-b"},
    ]
    assert not any(spec.environment for name, spec in parts.items() if "worker" not in name)
    assert not any(spec.environment for spec in specs().values()), "a single worker chooses by itself, as before"
    assert not any(spec.environment for spec in specs(workers="4", device="cpu").values())


@pytest.mark.parametrize(
    ("found", "variable", "flags", "complaint"),
    [
        ([], "", {"device": "cuda"}, "3 workers need 3 GPUs, but this host has 0; lower the number of workers"),
        (
            ["0", "1"],
            "",
            {},
            "3 workers need 3 GPUs, but this host has 2; .*, or run them on the CPU with --device cpu",
        ),
        (["4", "7"], "4,7", {}, "3 workers need 3 GPUs, but CUDA_VISIBLE_DEVICES shows 2"),
        (["0", "1", "2"], "", {"device": "cuda:1"}, "--device is cuda:1, but 3 workers need 3 GPUs; use --device cuda"),
    ],
)
def test_too_few_gpus_are_told_before_anything_is_loaded(
    gpus: list[str],
    found: list[str],
    variable: str,
    flags: dict[str, object],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpus += found
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    with pytest.raises(ConfigError, match=complaint):
        build_stack({"workers": "3", **flags}, {})


def test_memory_that_all_workers_ask_for_together_must_be_there(
    gpus: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_share, "available_memory", lambda: Available(10 * GIB, "this host"))
    cache = {"kv_cache_memory_bytes": str(3 * GIB)}
    build_stack({"workers": "3", **cache}, {})
    with pytest.raises(
        ConfigError, match=r"--kv-cache-memory-bytes takes 12\.0 GiB for 4 workers, but this host has 10\.0 GiB"
    ):
        build_stack({"workers": "4", **cache}, {})
    with pytest.raises(ConfigError, match=r"--swap-space and --kv-cache-memory-bytes take 12\.0 GiB for 3 workers"):
        build_stack({"workers": "3", "swap_space": "1", **cache}, {})
    build_stack({"swap_space": "11"}, {})  # The one worker checks by itself, as before.
    gpus += map(str, range(4))
    build_stack({"workers": "4", **cache}, {})  # The KV cache is in the memory of the GPUs.
    with pytest.raises(ConfigError, match=r"--swap-space takes 12\.0 GiB for 4 workers"):
        build_stack({"workers": "4", "swap_space": "3"}, {})


DRIVER = """
#include <stdlib.h>
int cuInit(unsigned flags) { return atoi(getenv("CU_INIT")); }
int cuDeviceGetCount(int *count) { *count = 3; return 0; }
"""


def test_gpus_are_counted_by_cudas_driver(tmp_path: Path) -> None:
    (tmp_path / "driver.c").write_text(DRIVER)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "libcuda.so.1", "driver.c"], cwd=tmp_path, check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "CU_INIT": "0"}
    environment.pop("CUDA_VISIBLE_DEVICES", None)

    assert visible_gpus(environment) == ("0", "1", "2")
    # The driver counts the valid entries. It ignores those after the first invalid one.
    assert visible_gpus({**environment, "CUDA_VISIBLE_DEVICES": "GPU-a, 5,GPU-b,-1,2"}) == ("GPU-a", "5", "GPU-b")
    assert visible_gpus({**environment, "CU_INIT": "100"}) == (), "no device"
    assert visible_gpus({"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": "/none"}) in ((), visible_gpus(os.environ))
