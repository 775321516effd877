"""The GPUs that this process may use, counted without torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

from shared.config import ConfigError

# Longest time in which CUDA's driver must answer.
_DRIVER_TIMEOUT_S = 60.0
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
    """Returns the GPUs that a process with this environment sees, each as CUDA_VISIBLE_DEVICES names it alone. Raises
    ConfigError if CUDA's driver does not answer."""
    command = (sys.executable, "-I", "-S", "-c", _COUNT)
    try:
        counted = subprocess.run(
            command, env=dict(environment), stdout=subprocess.PIPE, check=True, timeout=_DRIVER_TIMEOUT_S
        )
        count = int(counted.stdout)
    except (subprocess.SubprocessError, ValueError) as error:
        raise ConfigError(
            f"cannot count the GPUs, because CUDA's driver does not answer ({type(error).__name__}): "
            "try nvidia-smi, or use --device cpu"
        ) from None
    names = [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return tuple(names[:count]) if names else tuple(str(index) for index in range(count))
