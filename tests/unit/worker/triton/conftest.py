"""Kernels run on a GPU where there is one, else in Triton's interpreter: the same tests for both."""

from __future__ import annotations

import pytest
import torch

HAS_GPU = torch.cuda.is_available()


def _let_the_interpreter_count() -> None:
    """Triton 3.6 keeps scalars as arrays of one element, which numpy 2.4 no longer takes for the bounds of a loop."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_and_index(tensor: type, scope: interpreter._LangPatchScope) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch_and_index


if not HAS_GPU:
    _let_the_interpreter_count()


@pytest.fixture(scope="session", params=[pytest.param("cuda", marks=pytest.mark.gpu)] if HAS_GPU else ["cpu"])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)
