"""Metrics and options that the documents for operators name exist."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from quire.cli.bench import BenchConfig
from quire.cli.doctor.main import DoctorConfig
from quire.cli.stack import option_names
from shared.metrics import Metric, catalog

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENTS = [
    "troubleshooting.md",
    "faq.md",
    "comparison.md",
    "alerts.md",
    "options.md",
    "kubernetes.md",
    "operations.md",
]
# Options of other programs, or of a document's own example.
FOREIGN = {
    "--entrypoint", "--gpus", "--pids-limit", "--ulimit", "--volumes", "--profile", "--scale", "--build", "--env-file",
    "--follow", "--rmi", "--sbom", "--cascade", "--from-literal", "--ignore-not-found", "--replicas", "--timeout",
    "--set", "--values", "--retry", "--retry-connrefused",
}  # fmt: skip
# Options of commands that are not among those below.
OTHERS = {"--help", "--config", "--url"}


def names_of(metric: Metric) -> set[str]:
    suffixes = {"counter": ("_total",), "gauge": ("",), "histogram": ("", "_bucket", "_sum", "_count")}
    return {metric.name + suffix for suffix in suffixes[metric.kind]}


METRICS = set().union(*(names_of(one) for one in vars(catalog).values() if isinstance(one, Metric)))
OPTIONS = {
    "--" + name.replace("_", "-")
    for name in option_names() | {field.name for of in (BenchConfig, DoctorConfig) for field in dataclasses.fields(of)}
}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_metrics_exist(document: str) -> None:
    named = set(re.findall(r"(?:vllm|quire):[a-z0-9_]+", (DOCS / document).read_text()))
    assert named - METRICS == set()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_options_exist(document: str) -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+[a-z]", (DOCS / document).read_text()))
    assert {option.replace("--no-", "--") for option in named} - OPTIONS - FOREIGN - OTHERS == set()
