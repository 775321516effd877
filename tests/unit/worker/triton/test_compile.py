"""Ahead-of-time compilation: what is compiled, what is measured, and what makes it fail."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from services.worker.ops.triton import compile as ahead
from services.worker.ops.triton.attention.decode import decode_attention
from services.worker.ops.triton.attention.ragged import ragged_attention
from services.worker.ops.triton.disassembly import innermost_loops
from services.worker.ops.triton.quantize_rows import quantize_rows_kernel
from services.worker.ops.triton.variant import TARGETS, Variant

FITTING = ahead.Compiled(
    "name", 90, "n 64", num_warps=4, registers=128, spilled_bytes=0, shared_bytes=71680, issue=None
)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, where kernels are compiled rather than interpreted."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False)


ONE = ("-m", ahead.__name__, "--only", "quantize_rows bf16 576 to int8")


@pytest.mark.thorough
def test_a_table_is_printed() -> None:
    result = run(*ONE)
    assert result.returncode == 0, result.stderr
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in result.stdout.splitlines()]
    assert [(name, target) for name, target, *_ in cells[2:]] == [
        ("quantize_rows bf16 576 to int8", f"sm_{capability}") for capability in TARGETS
    ]
    for _, _, configuration, registers, spilled, shared, programs, issue, inputs in cells[2:]:
        assert configuration == "warps 4, stages 3"
        assert 16 <= int(registers) <= 255
        assert (int(spilled), int(shared) > 0, int(programs) > 1, issue) == (0, True, True, "")
        assert re.fullmatch("[0-9a-f]{10}", inputs)


@pytest.mark.thorough
def test_only_what_changed_is_compiled_again(tmp_path: Path) -> None:
    """And a table is refused that is not what would be written now."""
    table = tmp_path / "table.md"
    command = (*ONE, "--table", str(table))

    def write() -> str:
        result = run(*command)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def refusal() -> str:
        result = run(*command, "--check")
        assert result.returncode == 1
        return result.stderr

    assert "run `make kernels`" in refusal()
    assert "compiled 4 of 4 variants" in write()
    text = table.read_text()
    checked = run(*command, "--check")
    assert (checked.returncode, "4 rows are up to date; 1 were compiled again" in checked.stdout) == (0, True)
    *others, last = ahead.rows_of(table)
    name, inputs = last.split(" | ")[0].strip("| "), last.split(" | ")[-1].strip("| ")

    table.write_text(text.replace(inputs, "0123456789"))
    assert f"{name} for sm_90 is not as in the table" in refusal()
    assert "compiled 1 of 4 variants" in write()
    assert table.read_text() == text

    table.write_text(text.replace(last, last.replace("| warps 4,", "| warps 8,")))
    assert "the compiler makes something else of" in refusal()

    table.write_text(text.replace(others[0], others[0].replace(" | 0 | ", " | **640** | ")))
    assert "spills much" in run(*command, "--check").stderr
    assert "compiled 1 of 4 variants" in write()


DIGESTS = """
import triton, triton.language as tl
from services.worker.ops.triton.compile_inputs import digest

LIMIT = tl.constexpr(3)

@triton.jit
def part(x):
    '''Of a kernel.'''
    return x + 1  # one more

@triton.jit
def whole(x, N: tl.constexpr):
    tl.store(x, part(tl.load(x)) + LIMIT)

print(digest(whole, {"x": "*fp32", "N": 16}, 90))
"""


def test_what_the_compiler_is_given_changes_the_digest_and_nothing_else_does(tmp_path: Path) -> None:
    changes = {
        "itself": ("", ""),
        "a comment": ("# one more", "# another"),
        "a docstring": ("Of a kernel.", "Of two kernels."),
        "its place": ("LIMIT =", "\n\nLIMIT ="),
        "a part": ("x + 1", "x + 2"),
        "a constant": ("constexpr(3)", "constexpr(4)"),
        "an argument": ('"N": 16', '"N": 32'),
        "a type": ("*fp32", "*bf16"),
        "a target": ("90)", "80)"),
        "the kernel": ("+ LIMIT", "- LIMIT"),
    }
    found = {}
    for what, (old, new) in changes.items():
        script = tmp_path / f"{what}.py"  # Triton reads the source
        script.write_text(DIGESTS.replace(old, new) if old else DIGESTS)
        found[what] = script
    command = "import runpy, sys\nfor path in sys.argv[1:]: runpy.run_path(path)"
    result = run("-c", command, *map(str, found.values()))
    digests = dict(zip(found, result.stdout.split(), strict=True))
    alike = [what for what in digests if digests[what] == digests["itself"]]
    assert alike == ["itself", "a comment", "a docstring", "its place"]
    assert len(set(digests.values())) == len(changes) - len(alike) + 1


def test_what_memory_is_to_bound_leaves_it_time() -> None:
    """Of what is served most on an H200, by the table that is compared with the compiler's words: pages in 16 bits, and
    weights in every form but short groups, for few rows."""
    found = {}
    for line in (Path(__file__).parents[4] / "docs" / "gpu-kernels.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        name, target, *_, issue, _ = cells if len(cells) > 3 else [""] * 4
        is_served_most = re.match(
            r"decode d128 q bf16 kv bf16|eight_bit.* 16 rows$|four_bit.*(128|all) .* 16 rows$", name
        )
        if target == "sm_90" and issue and is_served_most:
            found[name] = float(issue)
    assert {name.split()[0] for name in found} == {"decode", "eight_bit", "eight_bit_weights", "four_bit"}
    assert max(found.values()) < 0.8, found


LISTING = """
.text.kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_2:
        /*0010*/                   HMMA.16816.F32 R4, R8, R12, R4 ;
.L_x_1:
        /*0020*/                   IADD3 R2, R2, 0x1, RZ ;
        /*0030*/              @!P0 BRA `(.L_x_1) ;
        /*0040*/                   HGMMA.64x16x16.F32 R4, R8, gdesc[UR4], R4 ;
        /*0050*/               @P1 BRA `(.L_x_2) ;
.L_x_3:
        /*0060*/                   QGMMA.64x16x32.F32.E4M3.E4M3 R4, gdesc[UR4], R4 ;
        /*0070*/                   NOP ;
        /*0080*/               @P1 BRA `(.L_x_3) ;
        /*0090*/               @P2 BRA `(.L_x_4) ;
.L_x_4:
        /*00a0*/                   EXIT ;
"""


def test_loops_that_have_no_other_in_them() -> None:
    """From a label to the branch back; neither the one around another, nor a branch ahead."""
    first, second = innermost_loops(LISTING.splitlines())
    assert [words.split()[0] for words in first] == ["IADD3", "@!P0"]
    assert [words.split()[0] for words in second] == ["QGMMA.64x16x32.F32.E4M3.E4M3", "NOP", "@P1"]


SPILLING = """
import triton, triton.language as tl
from services.worker.ops.triton.compile import compile_variant
from services.worker.ops.triton.variant import Variant

@triton.jit
def keep(x, y, stride, N: tl.constexpr):
    i = tl.arange(0, N)[:, None] + tl.arange(0, N)[None, :] * stride
    a = tl.load(x + i)
    tl.store(y + i, a + tl.sum(a))

for size in (16, 128):
    signature = {"x": "*fp32", "y": "*fp32", "stride": "i32:16"}
    compiled = compile_variant(Variant("keep", keep, signature, {"N": size}, 1, 1), 90)
    print(compiled.fits, compiled.spills_in_a_loop)

@triton.jit
def repeat(x, y, stride, count, N: tl.constexpr):
    i = tl.arange(0, N)[:, None] + tl.arange(0, N)[None, :] * stride
    a = tl.load(x + i)
    for step in range(count):
        a = a + tl.sum(a) * tl.load(x + i + step)
    tl.store(y + i, a)

signature = {"x": "*fp32", "y": "*fp32", "stride": "i32:16", "count": "i32"}
compiled = compile_variant(Variant("repeat", repeat, signature, {"N": 128}, 1, 1), 90)
print(compiled.fits, compiled.spills_in_a_loop)
"""


@pytest.mark.thorough
def test_what_spills_does_not_fit(tmp_path: Path) -> None:
    script = tmp_path / "spilling.py"  # Triton reads the source
    script.write_text(SPILLING)
    result = run(str(script))
    assert result.stdout.split() == ["True", "False", "False", "False", "False", "True"], result.stderr


MISFIT = """
from services.worker.ops.triton import compile as ahead

if __name__ == "__main__":
    ahead.PROCESSORS[89] = ahead.Processor(program_bytes=10, shared_bytes=100 << 10, warps=48, bytes_per_cycle=1.0)
    raise SystemExit(ahead.main(["--only", "quantize_rows bf16 576 to int8"]))
"""


@pytest.mark.thorough
def test_too_much_shared_memory_is_an_error(tmp_path: Path) -> None:
    script = tmp_path / "misfit.py"
    script.write_text(MISFIT)
    result = run(str(script))
    assert result.returncode == 1
    assert "** of 10" in result.stdout
    assert "sm_89" in result.stderr
    assert "sm_90" not in result.stderr


def test_the_interpreter_compiles_nothing() -> None:
    result = subprocess.run(
        [sys.executable, "-m", ahead.__name__],
        capture_output=True,
        env=os.environ | {"TRITON_INTERPRET": "1"},
        check=False,
    )
    assert result.returncode == 2
    assert b"TRITON_INTERPRET" in result.stderr


def test_every_kernel_is_compiled_for_every_target() -> None:
    targets = defaultdict(set)
    for task in ahead.tasks():
        variant = tuple(importlib.import_module(task.module).variants())[task.index]
        targets[variant.kernel].add(task.capability)
    assert targets.keys() >= {decode_attention, quantize_rows_kernel, ragged_attention}
    assert all(capabilities == set(TARGETS) for capabilities in targets.values())


@pytest.mark.parametrize("change", [{"q": None}, {"more": "i32"}, {"BLOCK": "i32"}])
def test_a_signature_that_is_not_the_kernels_is_refused(change: dict[str, str | None]) -> None:
    names = {"x": "*fp16", "q": "*i8", "scales": "*fp32", "x_stride": "i32"}
    signature = {name: kind for name, kind in (names | change).items() if kind is not None}
    constexprs = dict.fromkeys(("FEATURES", "FP8", "BLOCK"), 16)
    with pytest.raises(ValueError, match=next(iter(change))):
        ahead.compile_variant(Variant("quantize", quantize_rows_kernel, signature, constexprs, 4, 2), 90)


def test_what_fits_and_how_often() -> None:
    assert FITTING.fits
    assert ahead.Compiled("name", 90, "", 4, 128, 16, 71680, None).fits
    assert not ahead.Compiled("name", 90, "", 4, 128, 24, 71680, None).fits
    assert not ahead.Compiled("name", 90, "", 4, 128, 8, 71680, None, spills_in_a_loop=True).fits
    assert not ahead.Compiled("name", 89, "", 4, 128, 0, 110000, None).fits
    assert FITTING.programs == 3  # by shared memory: 228 KB / 71 KB
    assert ahead.Compiled("name", 90, "", 8, 255, 0, 0, None).programs == 1  # by registers: 65,536 / (256 · 256)
    assert ahead.Compiled("name", 89, "", 4, 16, 0, 0, None).programs == 12  # by warps: 48 / 4
