"""`smoke` launches every kernel that is served, and calls every operation that the GPU computes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from services.worker.ops.triton.ops import TritonOps
from tests.bare_tree import ROOT

# Groups of one form each that together launch all kernels: a whole dry run takes minutes.
GROUPS = {
    "products": (
        "products floats fp32, batch-invariant", "products fp8 x fp8 fp32", "products int8 alone fp16",
        "products int4 fp16", "products skinny fp16",
    ),
    "attention": ("attention fp32",),
    "experts": ("experts fp32",),
    "sampling": ("sampling 300",),
    "elementwise": ("elementwise fp32", "step inputs"),
}  # fmt: skip
# Of `TritonOps`: what it refuses, how an engine is set up, and what the other modules run without it (attention,
# products, draws).
RUN_BY_OTHER_MODULES = {
    "computes_with", "linear", "embedding", "fuse_layers", "prepare_attention", "plan_attention", "paged_attention",
    "sample_gumbel", "headwise_linear",
}  # fmt: skip

RUN = """
import importlib, json, pkgutil, sys
from unittest.mock import patch
from benchmarks.gpu import child
from benchmarks.gpu.cases import Group, Setting
from benchmarks.gpu.interpreter import interpret_kernels

interpret_kernels()
from triton.runtime.interpreter import InterpretedFunction
from services.worker.ops import triton as package
from services.worker.ops.triton.ops import TritonOps

launched, called, problems = set(), set(), []
run = InterpretedFunction.run

def counted(kernel, *args, **kwargs):
    launched.add(kernel.__name__)
    return run(kernel, *args, **kwargs)

def noted(name, function):
    def call(*args, **kwargs):
        called.add(name)
        return function(*args, **kwargs)
    return call

def tell(event, **values):
    if event == "failed":
        problems.append(values["problem"])

InterpretedFunction.run = counted
for name, function in list(vars(TritonOps).items()):
    if callable(function) and not name.startswith("_"):
        setattr(TritonOps, name, noted(name, function))
setting = Setting(dry_run=True)
with child.device(setting):
    for module, names in json.loads(sys.argv[1]).items():
        for name in names:
            for case in Group(f"benchmarks.gpu.smoke.{module}", name, 600.0).load(setting):
                child.run_case(case, tell)
served = set()
for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    module = importlib.import_module(info.name) if not info.name.endswith(".compile") else None
    for variant in module.variants() if hasattr(module, "variants") else ():
        served.add(variant.kernel.__name__)
print(json.dumps([sorted(launched), sorted(served), sorted(called), problems]))
"""


@pytest.mark.thorough
def test_every_kernel_and_every_operation_runs() -> None:
    command = [sys.executable, "-c", RUN, json.dumps(GROUPS)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    launched, served, called, problems = json.loads(result.stdout.splitlines()[-1])
    assert not problems
    assert served
    assert {*served} <= {*launched}
    operations = {name for name, value in vars(TritonOps).items() if callable(value) and not name.startswith("_")}
    assert operations - RUN_BY_OTHER_MODULES <= {*called}
