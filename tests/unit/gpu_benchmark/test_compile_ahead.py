"""Processes without a GPU compile what the benchmark launches later."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.waiting import HANG_S

COMPILING = """
from pathlib import Path
import sys
import torch
from triton import knobs
from benchmarks.gpu.compile_ahead import processes
from benchmarks.gpu.tiles import Candidate, compile_candidate
from services.worker.ops.triton.tiles import Tiles
from services.worker.quantization.kinds import Fp8Weight, Int4Weight

def kernels():
    return sorted(path.stem for path in Path(knobs.cache.dir).glob("*/*.cubin"))

if __name__ == "__main__":
    matrix = torch.randn(64, 1024)
    weights = {"fp8": Fp8Weight.quantize(matrix, True), "awq": Int4Weight.quantize(matrix.bfloat16(), 128)}
    with processes(90, ("benchmarks.gpu.tiles",)) as pool:
        for place in ("meta", "cpu"):
            for form, weight in weights.items():
                candidate = Candidate(form, 1, Tiles(32, 64, 128, 4, 3), is_stored=False)
                device = torch.device(place)
                pool.submit(compile_candidate, candidate, weight.to(device), 20, torch.bfloat16, device).result()
            print(*kernels())
"""


@pytest.mark.thorough
def test_launches_on_meta_tensors_compile_what_launches_on_tensors_in_memory_need(tmp_path: Path) -> None:
    """Tensors in memory find all kernels in the cache: the second line has no more kernels than the first."""
    script = tmp_path / "compiling.py"
    script.write_text(COMPILING)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(Path(__file__).parents[3])}
    result = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False, timeout=HANG_S
    )
    assert result.returncode == 0, result.stderr
    after_meta, after_memory = result.stdout.splitlines()
    assert after_meta.split() == ["eight_bit_kernel", "four_bit_kernel", "quantize_rows_kernel"]
    assert after_memory == after_meta
