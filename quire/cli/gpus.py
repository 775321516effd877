"""The GPUs that this process may use, counted without torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

# Asks CUDA's driver, which obeys CUDA_VISIBLE_DEVICES. It runs in a process of its own, because the driver keeps memory
# and threads in the process that asks.
_COUNT = """\
import ctypes
number = ctypes.c_int()
try:
    driver = ctypes.CDLL("libcuda.so.1")
    works = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(number)) == 0
except OSError:
    works = False
print(number.value if works else 0)
"""


def visible_gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the GPUs that a process with this environment sees, each as CUDA_VISIBLE_DEVICES names it alone."""
    command = (sys.executable, "-I", "-S", "-c", _COUNT)
    count = int(subprocess.run(command, env=dict(environment), stdout=subprocess.PIPE, check=True).stdout)
    names = [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return tuple(names[:count]) if names else tuple(str(index) for index in range(count))
