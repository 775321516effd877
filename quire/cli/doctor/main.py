"""The command: runs the checks one after the other, and prints each finding when it is there."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from deploy.envoy.config import GatewayConfig
from quire.cli.doctor import gpu, host, network, software
from quire.cli.doctor.finding import Finding, Verdict
from quire.cli.doctor.model import check_model
from quire.cli.installation import install_command
from quire.cli.stack import SERVICES
from services.worker.config import WorkerConfig
from shared.config import option, resolve
from shared.discovery import DiscoveryOptions

PROG = "quire doctor"
_WIDTH = max(map(len, Verdict))


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorConfig(DiscoveryOptions):
    model: str = option(
        "",
        "Model to check: a directory, a GGUF file or a name on the Hugging Face hub. If left out, the bundled model.",
        positional=True,
    )
    part: str = option(
        "serve",
        "What runs here: serve for all parts, or one part, as in a container.",
        choices=tuple(software.EXTRAS),
    )
    device: str = option("auto", "Device to run the model on: auto, cpu, cuda or cuda:N.")
    quantization: str | None = option(None, "Quantization at load, as for quire serve.", short="-q")
    download_dir: str = option("", "Directory for downloads from the hub. If left out, HF_HUB_CACHE.")
    host: str = option("127.0.0.1", "Address to serve on, as for quire serve.")
    port: int = option(8000, "TCP port to serve on, as for quire serve.", minimum=0, maximum=65535)
    metrics_port: int | None = option(
        None, "TCP port for Prometheus metrics, as for quire serve or the part.", minimum=0, maximum=65535
    )
    max_connections: int = option(
        GatewayConfig().max_connections, "Number of clients that are connected at a time.", minimum=1
    )
    json: bool = option(False, "Print one JSON object per finding.")


def main(argv: Sequence[str]) -> int:
    config = resolve(
        DoctorConfig,
        argv,
        prog=PROG,
        description="Checks this host before Quire runs on it: packages, memory, limits, GPUs, ports, hub, Redis and "
        "model. Exits with status 1 if there is a problem.",
    )
    num_problems = 0
    for finding in findings(config):
        num_problems += finding.verdict is Verdict.PROBLEM
        print(json.dumps(asdict(finding)) if config.json else text(finding), flush=True)
    if num_problems:
        print(f"{PROG}: {num_problems} problem{'s' * (num_problems != 1)}", file=sys.stderr)
    return 1 if num_problems else 0


def findings(config: DoctorConfig) -> Iterator[Finding]:
    packages = software.check_packages(config.part, install_command(software.EXTRAS[config.part]))
    yield packages
    if packages.verdict is Verdict.PROBLEM:
        return  # the other checks need them
    yield host.check_cores()
    yield host.check_memory()
    yield host.check_descriptors(config.max_connections)
    yield host.check_processes()
    if config.part in ("serve", "gateway"):
        yield host.check_runtime_directory()
        yield network.check_port(config.host, config.port)
    if config.metrics_port:
        # quire serve gives a port to each kind of part. Further parts of a kind use ports after these.
        yield network.check_metrics_ports(config.metrics_port, len(SERVICES) if config.part == "serve" else 1)
    yield network.check_redis(config)
    if config.part in ("serve", "worker"):
        yield from _of_worker(config)


def _of_worker(config: DoctorConfig) -> Iterator[Finding]:
    yield software.check_kernels()
    yield host.check_shared_memory()
    yield host.check_downloads(_downloads(config))
    cuda = gpu.ask_cuda()
    yield from gpu.check_gpus(cuda, config.device)
    if gpu.gpus_for(cuda, config.device):
        yield gpu.check_compiler()
    yield network.check_hub(network.Hub.from_environment())
    worker = WorkerConfig(
        model=config.model,
        device=config.device,
        quantization=config.quantization,
        download_dir=config.download_dir,
    )
    yield check_model(worker, cuda)


def text(finding: Finding) -> str:
    line = f"{finding.verdict:<{_WIDTH}}  {finding.subject:<9} {finding.what}"
    return line + (f"\n{'':<{_WIDTH}}  {'':<9} to do: {finding.remedy}" if finding.remedy else "")


def _downloads(config: DoctorConfig) -> Path:
    from huggingface_hub import constants

    return Path(config.download_dir or constants.HF_HUB_CACHE).expanduser()
