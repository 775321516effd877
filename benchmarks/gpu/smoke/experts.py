"""Tests mixtures of experts: all experts of a layer in one launch per product."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.gpu.cases import Case, Setting
from benchmarks.gpu.smoke.oracle import DTYPES, draw, worst_error
from services.worker.ops.interface import Activation
from services.worker.ops.reference import ReferenceOps
from services.worker.ops.triton.ops import TritonOps

DEVICE = torch.device("cuda", 0)


@dataclass(frozen=True, slots=True)
class Sizes:
    experts: int
    chosen: int  # for each token
    hidden: int
    inner: int

    def __str__(self) -> str:
        return f"{self.chosen} of {self.experts} experts of {self.hidden} x {self.inner}"


# Qwen3-30B-A3B, Mixtral with a quarter of its inner size, and gpt-oss-20b with a quarter of its experts.
SIZES = (Sizes(128, 8, 2048, 768), Sizes(8, 2, 4096, 3584), Sizes(8, 4, 2880, 2880))
TINY_SIZES = (Sizes(5, 2, 40, 24),)
TOKENS = (1, 8, 100, 1000)
TINY_TOKENS = (1, 9)


def cases(setting: Setting) -> Mapping[str, Callable[[], Iterable[Case]]]:
    names = ("fp32",) if setting.dry_run else DTYPES
    return {f"experts {name}": partial(_of_type, setting, name) for name in names}


def _of_type(setting: Setting, name: str) -> Iterator[Case]:
    for sizes in TINY_SIZES if setting.dry_run else SIZES:
        tokens = TINY_TOKENS if setting.dry_run else TOKENS
        yield Case(f"{sizes}, {name}", partial(_mix, sizes, DTYPES[name], tokens))


def _mix(sizes: Sizes, dtype: torch.dtype, all_tokens: tuple[int, ...]) -> float:
    """Compares with float32. Each token's result must have the same bits alone as among others."""
    ops, exact = TritonOps(DEVICE, dtype), ReferenceOps(DEVICE, torch.float32)
    shapes = ((2 * sizes.inner, sizes.hidden), (sizes.hidden, sizes.inner))
    weights = [
        [draw(*shape, dtype=dtype, device=DEVICE, scale=shape[1] ** -0.5) for _ in range(sizes.experts)]
        for shape in shapes
    ]
    first, second = ([ops.linear(weight) for weight in of_all] for of_all in weights)
    experts = ops.experts(first, second, Activation.SILU)
    first_exact, second_exact = ([exact.linear(weight.float()) for weight in of_all] for of_all in weights)
    exact_experts = exact.experts(first_exact, second_exact, Activation.SILU)
    worst = 0.0
    for num_tokens in all_tokens:
        x = draw(num_tokens, sizes.hidden, dtype=dtype, device=DEVICE)
        scores = draw(num_tokens, sizes.experts, dtype=torch.float32, device=DEVICE)
        of_chosen, chosen = scores.softmax(-1).topk(sizes.chosen, dim=-1)
        got = experts(x, chosen, of_chosen.to(dtype))
        worst = max(worst, worst_error(got, exact_experts(x.float(), chosen, of_chosen.to(dtype).float())))
        alone = experts(x[:1], chosen[:1], of_chosen[:1].to(dtype))
        if not torch.equal(alone, got[:1]):
            raise AssertionError(f"a token has other bits alone than among {num_tokens}")
    return worst
