"""Extensions of Triton's interpreter, which runs kernels on machines without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests import ptx


def complete_the_interpreter() -> None:
    """Adds the features that Quire's kernels need and the interpreter lacks."""
    _index_by_scalars()
    _run_inline_assembly()


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
