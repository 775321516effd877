"""Extensions of Triton's interpreter, which runs kernels on machines without a GPU."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests import ptx


def complete_the_interpreter() -> None:
    """Adds the features that Quire's kernels need and the interpreter lacks."""
    _index_by_scalars()
    _run_inline_assembly()
    _multiply_rows_alike()
    _patch_once()


def _index_by_scalars() -> None:
    """Lets scalars be loop bounds. Triton 3.6 keeps them as arrays of one element, which numpy 2.4 does not accept."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_and_index(tensor: type, scope: interpreter._LangPatchScope) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch_and_index


def _run_inline_assembly() -> None:
    """Runs inline assembly as compiled code does: each group of `pack` elements fills as few registers as possible."""
    from triton.runtime import interpreter

    def create_inline_asm(
        _builder: object,
        asm: str,
        constraints: str,
        values: Sequence[Any],
        types: Sequence[Any],
        _pure: bool,
        pack: int,
    ) -> SimpleNamespace:
        inputs = []
        for value in values:
            words = np.ascontiguousarray(value.data).reshape(-1, pack).view(np.uint32)
            inputs += [np.ascontiguousarray(column) for column in words.T]
        outputs = ptx.run(asm, inputs, constraints.count("="))
        results = []
        for kind in types:
            kind = kind.scalar
            count = pack * kind.primitive_bitwidth // 32
            registers, outputs = outputs[:count], outputs[count:]
            data = np.stack(registers, axis=1).view(interpreter._get_np_dtype(kind))
            results.append(interpreter.TensorHandle(data.reshape(values[0].data.shape), kind))
        assert not outputs
        return SimpleNamespace(get_result=lambda index: results[index])

    interpreter.InterpreterBuilder.create_inline_asm = create_inline_asm


def _multiply_rows_alike() -> None:
    """Makes the bits of a row of a product independent of the row's place in the tile, as they are on a GPU. numpy's
    matmul calls BLAS, which computes the last rows of some tiles in another order (seen with OpenBLAS on Haswell)."""
    from triton.runtime import interpreter

    def create_dot(
        _builder: object, a: Any, b: Any, d: Any, input_precision: object, max_num_imprecise_acc: object
    ) -> Any:
        def operand(handle: Any) -> Any:
            is_narrow = handle.dtype.primitive_bitwidth == 8 and handle.dtype.is_floating()
            if is_narrow:
                return interpreter._convert_float(handle.data, handle.dtype, interpreter.tl.float16, None).view(
                    np.float16
                )
            return handle.data

        kind = d.data.dtype
        product = np.einsum("...mk,...kn->...mn", operand(a).astype(kind), operand(b).astype(kind), optimize=False)
        return interpreter.TensorHandle(product + d.data, d.dtype.scalar)

    interpreter.InterpreterBuilder.create_dot = create_dot


def _patch_once() -> None:
    """Patches each module of `triton.language` at most once in a launch, and restores all of them when the launch ends.
    The interpreter itself patches at every call of a device function, which takes a sixth of the CPU time of a worker's
    tests. It never restores modules that only device functions name, such as `tl.core`."""
    from triton.runtime import interpreter

    tl = interpreter.tl
    patch, restore = interpreter._patch_lang, interpreter._LangPatchScope.restore
    # Of the launch that runs now: what to restore, and the modules that are patched.
    scope: interpreter._LangPatchScope | None = None
    patched: set[object] = set()

    @functools.cache
    def modules_of(function: Any) -> frozenset[object]:
        known = {id(value) for value in function.__globals__.values()}
        return frozenset(module for module in (tl, tl.core) if id(module) in known)

    def patch_once(function: Any) -> interpreter._LangPatchScope:
        nonlocal scope
        modules = modules_of(function)
        if scope is None:
            scope = patch(function)
        elif not modules <= patched:
            scope._changes += patch(function)._changes
        patched.update(modules)
        return scope

    def restore_at_end(ended: interpreter._LangPatchScope) -> None:
        nonlocal scope
        restore(ended)
        scope = None
        patched.clear()

    interpreter._patch_lang = patch_once
    interpreter._LangPatchScope.restore = restore_at_end
