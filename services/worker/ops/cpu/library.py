"""Loads the compiled kernels of the best instruction-set level that this processor supports."""

from __future__ import annotations

import functools
from ctypes import CDLL, PyDLL, c_char_p, c_float, c_int, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path

import torch

from services.worker.ops.cpu import build

_P, _L, _I, _F = c_void_p, c_int64, c_int, c_float
SIGNATURES: dict[str, tuple[object, ...]] = {
    "quire_gemm": (_P, _P, _P, _P, _L, _L, _L, _I, _I),
    "quire_gemm_heads": (_P, _P, _P, _L, _L, _L, _L, _L, _L, _I, _I),
    "quire_pack": (_P, _P, _L, _L, _L, _L, _I),
    "quire_pack_quantized": (_P, _P, _L, _L, _L, _L, _I),
    "quire_unpack_quantized": (_P, _P, _P, _L, _L, _L, _I),
    "quire_embedding": (_P, _P, _P, _L, _L, _L, _I, _I),
    "quire_rms_norm": (_P, _P, _P, _P, _L, _L, _F, _I),
    "quire_gated_activation": (_P, _P, _L, _L, _I, _I),
    "quire_layer_norm": (_P, _P, _P, _P, _P, _L, _L, _F, _I),
    "quire_soft_cap": (_P, _P, _L, _L, _F, _I),
    "quire_activate": (_P, _P, _L, _L, _I, _I),
    "quire_rope_and_write_kv": (_P,),
    "quire_paged_attention": (_P,),
    "quire_sample_gumbel": (_P, _P, _P, _P, _P, _L, _L, _I),
    "quire_philox": (_P, _P, _P),
    "quire_evaluate": (_I, _P, _P, _L),
}


class LibraryError(RuntimeError):
    """The kernels are missing, do not load, or were compiled from other sources. The message is one line."""


@dataclass(frozen=True, slots=True)
class Library:
    level: str
    functions: CDLL
    held: PyDLL  # the same library, called without releasing the GIL: for short calls


def open_library(path: Path) -> CDLL:
    """Loads the library at `path` and declares its functions. Raises LibraryError if the library does not load or
    was compiled from other sources."""
    try:
        functions = CDLL(str(path))
        functions.quire_source_digest.restype = c_char_p
        if functions.quire_source_digest().decode() != build.source_digest():
            raise LibraryError(
                f"{path.name} was compiled from other sources; run `python -m services.worker.ops.cpu.build`"
            )
        declare(functions)
    except (OSError, AttributeError) as error:
        raise LibraryError(f"{path.name} does not load: {error}") from error
    return functions


def declare(functions: CDLL) -> None:
    for name, arguments in SIGNATURES.items():
        function = getattr(functions, name)
        function.argtypes = arguments
        function.restype = None
    functions.quire_packed_words.argtypes = (_L, _L, _I)
    functions.quire_packed_words.restype = c_int64
    functions.quire_padded_columns.argtypes = (_L,)
    functions.quire_padded_columns.restype = c_int64
    functions.quire_gemm_quantized.argtypes = (_P,) * 7 + (_L,) * 5 + (_I, _I, _I)
    functions.quire_gemm_quantized.restype = c_int
    functions.quire_scratch_floats.argtypes = (_P,)
    functions.quire_scratch_floats.restype = c_int64
    functions.quire_run_layers.argtypes = (_P,)
    functions.quire_run_layers.restype = c_int
    functions.quire_struct_bytes.argtypes = (c_int,)
    functions.quire_struct_bytes.restype = c_int64


def supported_levels() -> list[str]:
    """Returns the levels that this processor supports, lowest first. Raises `LibraryError` if no kernels exist."""
    lowest, *higher = build.levels()
    if not (build.SOURCE_DIRECTORY / build.library_name(lowest)).exists():
        raise LibraryError("the CPU kernels are not compiled; run `python -m services.worker.ops.cpu.build`")
    highest = {"AVX512": 4, "AVX2": 3}.get(torch.backends.cpu.get_cpu_capability(), 2)
    return [lowest, *(level for level in higher if int(level[-1]) <= highest)]


@functools.cache
def load(level: str | None = None) -> Library:
    """Loads the kernels of `level`; None: the highest level that this processor supports. Raises `LibraryError` if the
    kernels cannot be loaded."""
    level = level or supported_levels()[-1]
    functions = open_library(build.SOURCE_DIRECTORY / build.library_name(level))
    held = PyDLL(functions._name, handle=functions._handle)
    declare(held)
    return Library(level, functions, held)
