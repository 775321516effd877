"""The cases of smoke's engine group, with one among them that loses the simulated GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from unittest.mock import patch

import torch

from benchmarks.gpu.cases import Case, Setting
from benchmarks.gpu.smoke import serving
from tests.simulated_gpu import SimulatedGPU

KEPT = ("starts", "masks", "embeddings")


def cases(setting: Setting) -> Mapping[str, Callable[[], Iterable[Case]]]:
    return {"engine": lambda: _cases(setting)}


def _cases(setting: Setting) -> Iterator[Case]:
    found = {case.name: case for case in serving.cases(setting)["engine 8B bf16"]()}
    first, *others = (found[name] for name in KEPT)
    yield first
    yield Case("loses the device", _lose_the_device)
    yield from others


def _lose_the_device() -> None:
    patch.object(SimulatedGPU, "require_alive", _raise).start()
    torch.cuda.synchronize()


def _raise(_gpu: SimulatedGPU) -> None:
    raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
