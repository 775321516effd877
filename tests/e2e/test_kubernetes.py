"""The containers of the manifests for Kubernetes, run as processes: they find each other, pass their probes, answer,
and end by themselves when they are told to stop."""

from __future__ import annotations

import dataclasses
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import openai
import pytest
import transformers
from grpc_health.v1 import health_pb2, health_pb2_grpc

from quire.cli.stack import SERVICES
from tests.e2e.containers import ROOT, Container, Project, Service, running
from tests.e2e.test_bench import fields
from tests.e2e.test_compose import wait_used
from tests.fakes.redis_server import SERVER
from tests.fakes.tools import needs
from tests.fakes.waiting import HANG_S, wait_until
from tests.unit.deploy.kubernetes import (
    COMPONENT,
    KUBECTL,
    Manifests,
    container_of,
    environment_of,
    helm,
    pod_labels,
    pod_of,
    rendered,
)
from tests.unit.worker.tiny_encoders import TINY, save_encoder, write_modules

pytestmark = needs(KUBECTL, "kubectl")
CHAT_MODEL = ROOT / "quire" / "models" / "quire-chat"
SIMULATED_GPU = Path(__file__).with_name("worker_on_a_simulated_gpu")
# Of the load: more than can be sent before the test ends it.
NUM_PROMPTS = 10_000
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def services_of(manifests: Manifests) -> dict[str, Service]:
    """Each workload, found under the names of the Services that select its pods."""
    found = {}
    for workload in manifests.of("Deployment", "StatefulSet"):
        container, part = container_of(workload), pod_labels(workload)[COMPONENT]
        services = (one for one in manifests.of("Service") if workload in manifests.selected(one["spec"]["selector"]))
        found[workload["metadata"]["name"]] = Service(
            part=part if part in SERVICES else "",
            command=tuple(container.get("args", ())),
            environment=environment_of(container),
            grace_s=pod_of(workload).get("terminationGracePeriodSeconds", 30),
            names=tuple(one["metadata"]["name"] for one in services),
        )
    return found


def passes(probe: dict[str, Any], ports: dict[str, int], address: str) -> bool:
    """Asks once, as a kubelet does."""
    if "grpc" in probe:
        with grpc.insecure_channel(f"{address}:{probe['grpc']['port']}") as channel, suppress(grpc.RpcError):
            check = health_pb2.HealthCheckRequest(service=probe["grpc"]["service"])
            answer = health_pb2_grpc.HealthStub(channel).Check(check, timeout=HANG_S)
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
        return False
    url = f"http://{address}:{ports[probe['httpGet']['port']]}{probe['httpGet']['path']}"
    with suppress(OSError), urllib.request.urlopen(url, timeout=HANG_S) as response:
        return bool(200 <= response.status < 400)
    return False


def wait_ready(manifests: Manifests, project: Project) -> None:
    """Waits until every container passes all of its probes."""
    for name, containers in project.containers.items():
        if not project.services[name].part:
            continue
        (workload,) = [one for one in manifests.of("Deployment", "StatefulSet") if one["metadata"]["name"] == name]
        definition = container_of(workload)
        ports = {port["name"]: port["containerPort"] for port in definition["ports"]}
        for container in containers:
            for probe in (definition[kind] for kind in PROBES):
                wait_until(lambda: passes(probe, ports, container.address), 0.2)  # noqa: B023 - called at once


def silence_of(container: Container) -> float:
    """The seconds since the last answer of DNS or Redis, whichever has been silent longer."""
    with urllib.request.urlopen(f"http://{container.address}:9000/metrics", timeout=HANG_S) as response:
        lines = response.read().decode()
    (seconds,) = re.findall(r"^quire:discovery_silence_seconds\{.*\} (\S+)$", lines, re.MULTILINE)
    return float(seconds)


def wait_answered(container: Container) -> None:
    """Waits until both DNS and Redis have told a container about other parts. The silence of a source that knows
    nothing only grows."""
    seconds = [silence_of(container)]

    def has_become_shorter() -> bool:
        seconds.append(silence_of(container))
        return seconds[-1] < seconds[-2]

    wait_until(has_become_shorter, 0.1)


def client_of(gateway: Container) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://{gateway.address}:8000/v1", api_key="none", max_retries=0, timeout=HANG_S)


def ask(gateway: Container, model: str | openai.Omit) -> str:
    answer = client_of(gateway).chat.completions.create(
        model=model,  # type: ignore[arg-type]
        messages=[{"role": "user", "content": "What is 7 plus 5?"}],
        temperature=0,
    )
    return answer.choices[0].message.content or ""


def test_the_exercise_of_the_documentation() -> None:
    """Pods find each other by DNS, pass their probes and answer. Under the load, workers are added, and the first one
    is deleted. However fast the machine is, the load lasts until the test ends it."""
    exercise = (ROOT / "docs" / "kubernetes.md").read_text().partition("## An exercise")[2]
    (load,) = re.findall(r"^quire (bench serve .+) &$", exercise, re.MULTILINE)
    load, num_replaced = re.subn(r"--num-prompts \d+", f"--num-prompts {NUM_PROMPTS}", load)
    assert num_replaced == 1
    (num_workers,) = re.findall(r"scale statefulset/worker --replicas (\d+)$", exercise, re.MULTILINE)
    assert re.search(
        r" rollout status statefulset/worker .*\n.* delete pod worker-0\nwait \$!$", exercise, re.MULTILINE
    )
    manifests = rendered("cpu")
    numbers = {one["metadata"]["name"]: one["spec"]["replicas"] for one in manifests.of("Deployment", "StatefulSet")}
    with running(numbers, services_of(manifests)) as project:
        wait_ready(manifests, project)
        gateways = project.containers["gateway"]
        for gateway in gateways:
            assert "12" in ask(gateway, "quire-chat")
        questions = re.findall(r"^(?:curl|quire chat) .*http://127.0.0.1:8000.*$", exercise, re.MULTILINE)
        for line, shown in zip(questions, ('"quire-chat"', "12", "vllm:num_requests_running"), strict=True):
            words = shlex.split(line.replace("127.0.0.1", gateways[0].address))
            answer = subprocess.run(
                [sys.executable, "-m", *words] if words[0] == "quire" else words,
                cwd=ROOT, input="What is 7 plus 5?\n", capture_output=True, text=True, timeout=HANG_S,
            )  # fmt: skip
            assert shown in answer.stdout, answer.stderr
        # A slow machine would refuse what waits for too long.
        further = ("--host", gateways[0].address, "--max-concurrency", "32")
        words = [sys.executable, "-m", "quire", *load.split(), *further]
        with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as loading:
            try:
                wait_used(project.containers["router"])
                workers = project.scale("worker", int(num_workers))
                wait_ready(manifests, project)
                wait_used(workers)
                project.remove(workers[0])
                wait_used([*project.containers["worker"], *project.containers["router"]])
                loading.send_signal(signal.SIGINT)
                printed, _ = loading.communicate(timeout=HANG_S)
            finally:
                loading.kill()
    assert loading.returncode == 130, "the load has not ended by itself"
    result = fields(printed)
    assert int(result["Successful requests"]) > 0, printed
    assert result["Failed requests"] == "0"


@pytest.fixture
def encoder() -> Iterator[Path]:
    """A directory that the images' user can read, with a random encoder."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        tokenizer = transformers.AutoTokenizer.from_pretrained(CHAT_MODEL)
        save_encoder(directory, vocab_size=len(tokenizer))
        tokenizer.save_pretrained(directory)
        write_modules(directory, {"pooling_mode_mean_tokens": True})
        yield directory


@pytest.mark.parametrize(
    ("overlay", "worker"),
    [("models-gpu", "chat-worker"), pytest.param("gpu", "worker", marks=pytest.mark.thorough)],
)
def test_workers_with_a_gpu(overlay: str, worker: str, encoder: Path) -> None:
    """The overlays with GPUs, one pod for each workload, on a simulated GPU. Its kernels are interpreted, so the model
    is a small one, and its batch."""
    manifests = rendered(overlay)
    services = services_of(manifests)
    small = {"QUIRE_MODEL": "quire-chat", "QUIRE_MAX_NUM_SEQS": "1", "QUIRE_MAX_NUM_BATCHED_TOKENS": "32"}
    simulated = {"PYTHONPATH": f"{SIMULATED_GPU}:{ROOT}", "TRITON_INTERPRET": "1", "GOMP_SPINCOUNT": "1000"}
    given = {worker: small | simulated, "embed-worker": {"QUIRE_MODEL": str(encoder)}}
    for name in given.keys() & services.keys():
        environment = {**services[name].environment, **given[name]}
        services[name] = dataclasses.replace(services[name], environment=environment)
    assert services[worker].environment["QUIRE_DEVICE"] == "cuda"
    with running(dict.fromkeys(services, 1), services) as project:
        wait_ready(manifests, project)
        (gateway,), (process,) = project.containers["gateway"], project.containers[worker]
        model = services[worker].environment.get("QUIRE_SERVED_MODEL_NAME", "quire-chat")
        client = client_of(gateway)
        wait_until(lambda: model in {model.id for model in client.models.list()}, 0.1)
        assert "12" in ask(gateway, openai.omit), "the router's default model"
        assert f"serving {model} on cuda:0" in process.log.read_text()


def test_two_models_behind_one_address(encoder: Path) -> None:
    """The chart with several models, but with models that are on this machine, and one pod for each workload. Where
    Redis is there, the pods find each other in it and by DNS."""
    manifests = helm("models", redis=SERVER is not None)
    chat, embed, front = (f"{manifests.prefix}{name}" for name in ("chat-worker", "embed-worker", "gateway"))
    services = services_of(manifests)
    for name, path in ((chat, "quire-chat"), (embed, str(encoder))):
        environment = {**services[name].environment, "QUIRE_MODEL": path}
        services[name] = dataclasses.replace(services[name], environment=environment)
    with running(dict.fromkeys(services, 1), services) as project:
        wait_ready(manifests, project)
        (gateway,) = project.containers[front]
        client = client_of(gateway)
        wait_until(lambda: {model.id for model in client.models.list()} == {"chat", "embed"}, 0.1)
        assert "12" in ask(gateway, "chat")
        assert "12" in ask(gateway, openai.omit), "the router's default model"
        for name in (chat, embed):
            (scheduler,) = project.containers[name.replace("worker", "scheduler")]
            (worker,) = project.containers[name]
            assert f"claimed worker {worker.address}:50071" in scheduler.log.read_text()
            wait_answered(scheduler)
        (router,) = project.containers[front.replace("gateway", "router")]
        wait_answered(router)
        wait_answered(gateway)
        assert len(client.embeddings.create(model="embed", input="Hello").data[0].embedding) == TINY["hidden_size"]
