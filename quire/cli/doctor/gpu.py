"""Checks of NVIDIA's driver, of the GPUs, and of what Triton needs to compile kernels for them.

A separate process asks the driver, because CUDA keeps memory and threads in the process that uses it, and because a
driver that hangs must not stop the other checks.
"""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from quire.cli.doctor.finding import Finding, ok, problem, unused, warning
from services.worker.config import WorkerConfig
from shared.host_memory import in_words
from shared.python_child import child_environment, python_command

# Longest time in which torch must be imported and CUDA's driver must answer.
DRIVER_TIMEOUT_S = 60.0
# Share of a GPU's memory that a worker takes by default.
UTILIZATION = WorkerConfig().gpu_memory_utilization


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    capability: tuple[int, int]
    num_bytes: int
    free_bytes: int
    refusal: str | None  # why Quire does not run on it


@dataclass(frozen=True, slots=True)
class Cuda:
    """What torch and CUDA's driver say. `torch_cuda`: the CUDA release that torch is built for; None for a CPU build.
    `driver_cuda`: the newest CUDA release that the driver supports, such as 13.0; None without a driver. `error`: why
    torch sees no GPU although there is a driver."""

    torch: str
    torch_cuda: str | None
    driver_cuda: str | None
    error: str
    gpus: tuple[Gpu, ...]


def ask_cuda() -> Cuda | str:
    """Asks torch and CUDA's driver in a separate process. Returns their answers, or a sentence that says why there are
    none."""
    try:
        asked = subprocess.run(
            python_command("quire.cli.doctor.gpu"),
            env=child_environment(),
            capture_output=True,
            check=True,
            text=True,
            timeout=DRIVER_TIMEOUT_S,
        )
        found = json.loads(asked.stdout)
    except subprocess.TimeoutExpired:
        return f"CUDA's driver does not answer within {DRIVER_TIMEOUT_S:g} s"
    except subprocess.CalledProcessError as error:
        lines: list[str] = error.stderr.strip().splitlines()
        return lines[-1] if lines else f"torch ends with status {error.returncode}"
    except (OSError, ValueError) as error:
        return str(error)
    gpus = (Gpu(**(gpu | {"capability": tuple(gpu["capability"])})) for gpu in found.pop("gpus"))
    cuda: Cuda = Cuda(**found, gpus=tuple(gpus))
    return cuda


def gpus_for(cuda: Cuda | str, device: str) -> list[tuple[int, Gpu]]:
    """Returns the GPUs that workers with the option `--device` can get, with their numbers."""
    kind, _, number = device.partition(":")
    if isinstance(cuda, str) or kind == "cpu":
        return []
    return [(index, gpu) for index, gpu in enumerate(cuda.gpus) if number in ("", str(index))]


def check_gpus(cuda: Cuda | str, device: str = "auto") -> Iterator[Finding]:
    """`device`: as WorkerConfig.device."""
    if re.fullmatch(r"auto|cpu|cuda(:\d+)?", device) is None:
        yield problem("gpu", f"--device {device}: there is no such device", "use auto, cpu, cuda or cuda:N")
        return
    if device == "cpu":
        yield unused("gpu", "models run on the CPU (--device cpu)")
        return
    if isinstance(cuda, str):
        yield problem("gpu", cuda, "run nvidia-smi; if it hangs, restart the host; --device cpu does without GPUs")
        return
    needs_gpu = device != "auto"
    if cuda.driver_cuda is None:
        what = "no NVIDIA driver (libcuda.so.1)"
        if needs_gpu:
            yield problem("gpu", what, f"install NVIDIA's driver, or leave out --device {device}")
        else:
            yield unused("gpu", f"{what}: models run on the CPU")
        return
    if cuda.torch_cuda is None:
        what = f"NVIDIA's driver is there, but torch {cuda.torch} is built for CPUs only"
        remedy = "install torch for CUDA: pip install torch, with the index of https://pytorch.org"
        if needs_gpu:
            yield problem("gpu", what, remedy)
        else:
            yield warning("gpu", f"{what}: models run on the CPU", remedy)
        return
    if not cuda.gpus:
        why = cuda.error or "torch sees no GPU"
        versions = f"the driver must support CUDA {cuda.torch_cuda}, and supports {cuda.driver_cuda}"
        others = "check CUDA_VISIBLE_DEVICES, and that the container has GPUs (--gpus all)"
        yield problem("gpu", why, f"{versions}; {others}")
        return
    yield ok(
        "driver",
        f"NVIDIA's driver supports CUDA {cuda.driver_cuda}; torch {cuda.torch} is built for CUDA {cuda.torch_cuda}",
    )
    found = gpus_for(cuda, device)
    if not found:
        what = f"--device {device}: there is no such GPU; torch sees {len(cuda.gpus)}"
        yield problem("gpu", what, "count from cuda:0 on; CUDA_VISIBLE_DEVICES hides GPUs")
    for index, gpu in found:
        yield _check_gpu(index, gpu)


def check_compiler() -> Finding:
    """Triton compiles a small C module for each kernel when it first runs."""
    compiler = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    if compiler is None:
        return problem("compiler", "Triton needs a C compiler, and there is none", "apt install gcc")
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        return problem("compiler", f"Triton needs {header}, which is missing", "apt install python3-dev")
    return ok("compiler", f"{compiler} and Python.h, for Triton")


def _check_gpu(index: int, gpu: Gpu) -> Finding:
    name = f"{index}: {gpu.name}, compute capability {gpu.capability[0]}.{gpu.capability[1]}"
    if gpu.refusal is not None:
        return problem("gpu", f"{index}: {gpu.refusal}", "use another GPU (CUDA_VISIBLE_DEVICES), or --device cpu")
    words = f"{name}, {in_words(gpu.free_bytes)} of {in_words(gpu.num_bytes)} free"
    if gpu.free_bytes < gpu.num_bytes * UTILIZATION:
        share = int(gpu.free_bytes / gpu.num_bytes * 100) / 100
        what = f"{words}: less than the {UTILIZATION:.0%} that a worker takes"
        less = f", or --gpu-memory-utilization {share}" if share > 0 else ""
        return warning("gpu", what, f"end the other programs on it (nvidia-smi){less}")
    return ok("gpu", words)


def _ask_here() -> Cuda:
    """Asks torch and CUDA's driver in this process."""
    import torch

    driver = _driver_cuda()
    error = ""
    gpus: list[Gpu] = []
    if driver is not None and torch.version.cuda is not None:
        from services.worker.startup import unsupported_reason

        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]
            for index in range(torch.cuda.device_count()):
                device = torch.device("cuda", index)
                free, total = torch.cuda.mem_get_info(device)
                capability = torch.cuda.get_device_capability(device)
                gpus.append(
                    Gpu(torch.cuda.get_device_name(device), capability, total, free, unsupported_reason(device))
                )
        except Exception as caught:
            error = str(caught).splitlines()[0]
    return Cuda(torch.__version__, torch.version.cuda, driver, error, tuple(gpus))


def _driver_cuda() -> str | None:
    number = ctypes.c_int()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    if driver.cuDriverGetVersion(ctypes.byref(number)) != 0:
        return "none"
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


if __name__ == "__main__":
    json.dump(asdict(_ask_here()), sys.stdout)
