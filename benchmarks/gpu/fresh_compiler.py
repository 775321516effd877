"""Uses torch.compile for many shapes, each compiled anew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def fresh_compiler() -> Iterator[None]:
    """Discards all compiled functions. torch keeps eight compiled versions of a function and silently runs the ninth
    shape uncompiled, so a peer such as FlexAttention would be measured at a fraction of its speed. Inside the block,
    reaching this limit raises an error."""
    import torch._dynamo

    torch.compiler.reset()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        yield
