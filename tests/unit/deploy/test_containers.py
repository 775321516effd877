"""The containers, as far as they can be checked without an engine: linters, the Compose schema (compose-spec/, from the
project of that name), and the commands that they run, read by the parts that they start."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Collection
from dataclasses import replace
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from quire.cli.stack import SERVICES, part_specs
from quire.cli.stack_options import build_stack
from services.router.main import LAST_WORDS_S
from services.scheduler import main as scheduler_main
from services.worker.main import DRAIN_S
from shared.config import add_options, build
from shared.telemetry import LAST_EXPORT_S

ROOT = Path(__file__).parents[3]
# The extra of each image: its part's, or all for one host.
EXTRAS = {**{name: name for name in SERVICES}, "quire": "local"}
DOCKERFILES = {name: ROOT / "deploy" / "docker" / f"{name}.Dockerfile" for name in EXTRAS}
# With the values that variables have if they are left out.
COMPOSE: dict[str, Any] = yaml.safe_load(
    re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (ROOT / "docker-compose.yml").read_text())
)
# The part that a service of the profile models or gpu stands for.
FURTHER = {"scheduler-second": "scheduler", "worker-second": "worker", "worker-gpu": "worker"}

# Seconds that a part may take after its drain: until Envoy has ended (quire/cli/gateway.py), until clients or routers
# have their last messages, and until the worker's calls and then its steps have ended.
AFTER_DRAIN_S = {
    "gateway": 3.0,
    "router": LAST_WORDS_S,
    "scheduler": scheduler_main._LAST_FRAMES_S,
    "worker": 2 * DRAIN_S,
}
# Longest time that the process takes to end after all that.
MARGIN_S = 5.0


def longest_stop_s(part: str, config: Any) -> float:
    """How long a part with these options may take from SIGTERM on, as its code limits itself."""
    delay_s: float = getattr(config, "drain_delay", 0.0) + config.drain_timeout
    return delay_s + AFTER_DRAIN_S[part] + LAST_EXPORT_S


def instructions(name: str, keyword: str) -> list[str]:
    return re.findall(rf"^{keyword} (.+)$", DOCKERFILES[name].read_text(), re.MULTILINE)


def image_environment(name: str) -> dict[str, str]:
    words = [word for line in instructions(name, "ENV") for word in shlex.split(line)]
    return dict(word.split("=", 1) for word in words)


def parse(config_class: type, argv: list[str], environment: dict[str, str]) -> Any:
    import argparse

    parser = argparse.ArgumentParser(exit_on_error=False)
    add_options(parser, config_class)
    return build(config_class, vars(parser.parse_args(argv)), environment)


def config_of(service: str) -> Any:
    """Returns the options that the part of a service has, if the variables that are passed on are not set."""
    part, definition = FURTHER.get(service, service), COMPOSE["services"][service]
    given = {name: value for name, value in definition["environment"].items() if value is not None}
    return parse(SERVICES[part], definition["command"], image_environment(part) | given)


def test_hadolint_has_nothing_to_say() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    files = sorted((ROOT / "deploy" / "docker").glob("*.Dockerfile"))
    result = subprocess.run([hadolint, *files], capture_output=True, text=True)

    assert (result.returncode, result.stdout) == (0, "")


def test_the_compose_file_is_valid_and_safe() -> None:
    schema = json.loads(Path(__file__).with_name("compose-spec").joinpath("schema.json").read_text())
    jsonschema.Draft7Validator(schema).validate(COMPOSE)

    lint = Path(sys.executable).with_name("compose-lint")
    result = subprocess.run([lint, ROOT / "docker-compose.yml"], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("name", EXTRAS)
def test_an_image_is_not_roots_and_holds_its_own_extra_only(name: str) -> None:
    assert instructions(name, "USER") == ["10001:10001"]
    assert re.findall(r"'\.\[(.+)\]'", DOCKERFILES[name].read_text()) == [EXTRAS[name]]


@pytest.mark.thorough
def test_each_image_lists_its_packages(tmp_path: Path) -> None:
    """By the very command, on the environment of the tests."""
    text = re.compile(r"^RUN (pip install cyclonedx-bom==\S+) \\\n +&& (.+)$", re.MULTILINE)
    files = sorted((ROOT / "deploy" / "docker").glob("*.Dockerfile"))
    ((install, command),) = {found for path in files for found in text.findall(path.read_text()) or [("", "")]}
    binaries, sbom = tmp_path / "tool" / "bin", tmp_path / "sbom.json"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "tool"], check=True)
    subprocess.run([binaries / "python", "-m", *install.split()], check=True)
    words = {"/opt/quire/sbom.cdx.json": str(sbom), "/opt/quire/bin/python": sys.executable}
    program, *arguments = (words.get(word, word) for word in command.split())
    subprocess.run([binaries / program, *arguments], check=True)
    versions = {one["name"]: one["version"] for one in json.loads(sbom.read_text())["components"]}
    assert {"quire", "grpcio"} <= versions.keys()
    assert versions["grpcio"] == version("grpcio")


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_runs_the_command_that_quire_serve_runs(name: str, tmp_path: Path) -> None:
    (entrypoint,) = instructions(name, "ENTRYPOINT")
    (spec,) = (spec for spec in part_specs(build_stack({}, {}), tmp_path) if spec.name == name)

    # There `quire` is a script, here the same module.
    assert json.loads(entrypoint) == ["quire", spec.argv[4]]
    assert spec.argv[:4] == (sys.executable, "-P", "-m", "quire")


@pytest.mark.parametrize("name", SERVICES)
def test_each_part_understands_its_command_and_is_reached_where_the_others_look(name: str) -> None:
    service = COMPOSE["services"][name]
    config = config_of(name)
    (port,) = instructions(name, "EXPOSE")

    listens = (f"{config.host}:{config.port}",) if name == "gateway" else config.listen
    assert listens == (f"0.0.0.0:{port}",)
    # A part without the option serves its metrics on all interfaces.
    assert (config.metrics_host, config.metrics_port) == ("0.0.0.0", 9000)
    assert config.redis == "redis://redis:6379"
    assert "redis" in service["depends_on"]
    for peer in ("router", "scheduler", "worker"):
        if hasattr(config, peer):
            assert not getattr(config, peer), "it is found in Redis"
            assert peer in service["depends_on"]


@pytest.mark.parametrize("service", [*SERVICES, *FURTHER])
def test_a_container_may_take_as_long_to_stop_as_its_part(service: str) -> None:
    grace_s = float(COMPOSE["services"][service]["stop_grace_period"].removesuffix("s"))

    assert grace_s >= longest_stop_s(FURTHER.get(service, service), config_of(service)) + MARGIN_S


@pytest.mark.parametrize("name", SERVICES)
def test_the_health_check_asks_the_part_where_it_listens(name: str) -> None:
    (check,) = instructions(name, "HEALTHCHECK")
    command = json.loads(check.partition("CMD ")[2])
    (port,) = instructions(name, "EXPOSE")

    assert command[:2] == ["quire", "health"]
    assert command[2] == f"{'http://' if name == 'gateway' else ''}localhost:{port}"


def test_prometheus_scrapes_every_part() -> None:
    config = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())

    scraped = {job["job_name"]: job["dns_sd_configs"][0] for job in config["scrape_configs"]}
    for part in SERVICES:
        names = [part, *(service for service, of in FURTHER.items() if of == part)]
        assert scraped.pop(part) == {"names": names, "type": "A", "port": 9000}
    assert not scraped


def test_one_service_builds_each_image() -> None:
    """Compose would build an image once for each service with `build`, at the same time, and fail."""
    builders = [one["image"] for one in COMPOSE["services"].values() if "build" in one]
    assert len(builders) == len(set(builders))
    assert {one["image"] for one in COMPOSE["services"].values() if one["image"].startswith("quire-")} == set(builders)


def test_the_second_model_has_parts_of_its_own() -> None:
    scheduler, worker = config_of("scheduler-second"), config_of("worker-second")
    (port,) = instructions("worker", "EXPOSE")

    assert scheduler.redis
    assert scheduler.worker == (f"worker-second:{port}",)
    assert (scheduler.worker_model,) == worker.served_model_name
    assert not worker.redis, "the first model's scheduler would find it"
    assert COMPOSE["services"]["worker"]["environment"]["QUIRE_MODEL"] is None


def test_the_worker_on_a_gpu_differs_by_its_device() -> None:
    on_gpu = config_of("worker-gpu")
    assert on_gpu.device == "cuda"
    assert replace(on_gpu, device="cpu") == config_of("worker")
    (device,) = COMPOSE["services"]["worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "device_ids": ["0"], "capabilities": ["gpu"]}


# What starts with each documented list of profiles, besides what always starts.
ALWAYS = {"gateway", "router", "scheduler"}
STARTED = {
    "cpu,redis": {"worker", "redis"},
    "gpu,redis": {"worker-gpu", "redis"},
    "cpu,redis,models": {"worker", "redis", "scheduler-second", "worker-second"},
    "cpu,redis,telemetry": {"worker", "redis", "prometheus", "alertmanager", "grafana"},
    "cpu": {"worker"},
}
PROFILES = sorted({profile for service in COMPOSE["services"].values() for profile in service.get("profiles", ())})


def default_variables() -> dict[str, str]:
    """Returns what Compose reads from .env."""
    lines = (ROOT / ".env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


def documented_profiles() -> set[str]:
    """Returns the list of profiles of each `docker compose up` in the documents. Options replace the environment, which
    replaces .env (WithDefaultProfiles and WithDotEnv in compose-go's cli/options.go)."""
    texts = [
        path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "docker-compose.yml")
    ]
    found = set()
    for variables, options in re.findall(
        r"((?:[A-Z_]+=\S* )*)docker compose ((?:--profile \S+ )*)up", "\n".join(texts)
    ):
        given = default_variables() | dict(word.split("=", 1) for word in variables.split())
        found.add(",".join(re.findall(r"--profile (\S+)", options)) or given["COMPOSE_PROFILES"])
    return found


def active(profiles: Collection[str]) -> dict[str, Any]:
    services: dict[str, Any] = COMPOSE["services"]
    return {
        name: service
        for name, service in services.items()
        if not service.get("profiles") or not {*profiles}.isdisjoint(service["profiles"])
    }


def started(profiles: Collection[str]) -> set[str]:
    return {name for name, one in active(profiles).items() if one.get("deploy", {}).get("replicas") != 0}


def test_env_has_the_default_profiles_and_no_secrets() -> None:
    assert default_variables() == {"COMPOSE_PROFILES": "cpu,redis"}
    assert "!.env" not in (ROOT / ".dockerignore").read_text().splitlines()


def test_every_documented_list_of_profiles_is_checked_here() -> None:
    assert documented_profiles() == STARTED.keys()


@pytest.mark.parametrize("profiles", STARTED)
def test_profiles_start_what_the_documents_say(profiles: str) -> None:
    names = started(profiles.split(","))
    assert names == ALWAYS | STARTED[profiles]
    workers = [name for name in names if FURTHER.get(name, name) == "worker" and name != "worker-second"]
    assert len(workers) == 1, "two kinds of worker would share the first model"


@pytest.mark.parametrize(
    "profiles", [each for number in range(len(PROFILES) + 1) for each in combinations(PROFILES, number)], ids=",".join
)
def test_any_profiles_fit_together(profiles: tuple[str, ...]) -> None:
    """Compose refuses a file in which an active service requires one that is not. It pulls an image that no active
    service builds, and Quire's images are in no registry."""
    services = active(profiles)
    builders = [service["image"] for service in services.values() if "build" in service]
    assert len(builders) == len(set(builders))
    for service in services.values():
        assert service["image"] in builders or not service["image"].startswith("quire-")
        others = service.get("depends_on", ())
        required = [name for name in others if isinstance(others, list) or others[name].get("required", True)]
        assert {*required} <= services.keys()


def test_the_worker_on_a_gpu_has_shared_memory_for_ranks() -> None:
    assert COMPOSE["services"]["worker-gpu"]["shm_size"] == "8gb"


def passed(service: str) -> set[str]:
    """Variables that Compose passes on as they are, if they are set."""
    environment = COMPOSE["services"][service].get("environment", {})
    return {name for name, value in environment.items() if value is None}


@pytest.mark.parametrize("service", ["worker", "worker-gpu", "worker-second"])
def test_every_worker_gets_what_reaches_the_hub(service: str) -> None:
    assert {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT", "HTTPS_PROXY", "NO_PROXY"} <= passed(service)


@pytest.mark.parametrize("service", ["gateway", "router", "scheduler", "scheduler-second", "worker", "worker-gpu"])
def test_every_part_gets_the_variables_of_traces(service: str) -> None:
    ends = [f"{of}{end}" for of in ("", "TRACES_") for end in ("ENDPOINT", "INSECURE", "HEADERS", "CERTIFICATE")]
    others = {"OTEL_BSP_SCHEDULE_DELAY", "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG", "OTEL_RESOURCE_ATTRIBUTES"}
    assert {f"OTEL_EXPORTER_OTLP_{end}" for end in ends} | others <= passed(service)
