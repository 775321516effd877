"""torch.compile for one shape after another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def fresh_compiler() -> Iterator[None]:
    """Forgets what was compiled before. torch keeps eight forms of a function; for the ninth shape it would run the
    function uncompiled without an error, and a peer such as FlexAttention would be measured at a fraction of its speed.
    Inside, reaching that limit is an error."""
    import torch._dynamo

    torch.compiler.reset()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        yield
