"""The child process that runs a group of cases. It sends its parent a JSON message per event."""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.gpu.cases import Case, Group, Setting, SkippedError
from benchmarks.gpu.figures import Figure

Tell = Callable[..., None]


def run(connection: Connection, group: Group, setting: Setting, done: Collection[str], log: Path) -> None:
    """Runs the group's cases except those in `done`. Ends early if the device's context is dead."""
    with log.open("ab") as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)

    def tell(event: str, **values: Any) -> None:
        connection.send_bytes(json.dumps({"event": event, **values}).encode())

    with device(setting):
        try:
            cases = [case for case in group.load(setting) if case.name not in done]
        except Exception as error:
            tell("broken", problem=describe(error), traceback=traceback.format_exc())
            return
        tell("planned", cases=[case.name for case in cases])
        for case in cases:
            if not run_case(case, tell):
                return
            free_unused_memory()


def run_case(case: Case, tell: Tell) -> bool:
    """Runs one case and reports its result. Returns whether the device is still usable."""
    tell("begin", case=case.name)
    start = time.monotonic()
    try:
        worst = None
        found = case.run()
        if isinstance(found, float):
            worst = found
        elif found is not None:
            for figure in found:
                tell("figure", figure=_fields(figure))
        wait_for_device()
    except SkippedError as reason:
        tell("skipped", seconds=time.monotonic() - start, problem=str(reason))
        return True
    except Exception as error:
        alive = is_alive()
        tell(
            "failed", seconds=time.monotonic() - start, problem=describe(error), traceback=traceback.format_exc(),
            dead=not alive,
        )  # fmt: skip
        return alive
    tell("ok", seconds=time.monotonic() - start, error=worst)
    return True


def wait_for_device() -> None:
    """Waits for all launched kernels. Raises their errors."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def free_unused_memory() -> None:
    """Returns the memory that the case has freed to the device, which other child processes share."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def is_alive() -> bool:
    """Returns whether the CUDA context still works. After an illegal access, every call fails (a sticky error)."""
    try:
        wait_for_device()
    except RuntimeError:
        return False
    return True


def describe(error: BaseException) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


@contextmanager
def device(setting: Setting) -> Iterator[None]:
    """Sets up the device. A dry run uses the simulated GPU and Triton's interpreter instead."""
    with ExitStack() as stack:
        if setting.dry_run:
            from benchmarks.gpu.interpreter import interpret_kernels

            interpret_kernels()
            from tests.simulated_gpu import SimulatedGPU

            stack.enter_context(SimulatedGPU(1 << 30).running())
        import torch

        from services.worker.startup.gpu import select_gpu

        torch.set_num_threads(1)  # the children share the cores
        stack.enter_context(torch.no_grad())
        if torch.cuda.is_available():
            select_gpu(torch.device("cuda", 0))  # use the same settings as a worker
        yield


def _fields(figure: Figure) -> dict[str, Any]:
    return {name: getattr(figure, name) for name in Figure.__dataclass_fields__}
