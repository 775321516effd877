"""Triton's interpreter, for kernels that run where there is no GPU."""

from __future__ import annotations


def let_the_interpreter_count() -> None:
    """Triton 3.6 keeps scalars as arrays of one element, which numpy 2.4 no longer takes for the bounds of a loop."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_and_index(tensor: type, scope: interpreter._LangPatchScope) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch_and_index
