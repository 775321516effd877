"""How a model is pooled is read from its sentence-transformers files, whichever release wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from services.worker.errors import ModelError
from services.worker.pooling.config import PoolingConfig, PoolingKind, read_pooling
from tests.unit.worker.tiny_encoders import write_modules


@pytest.mark.parametrize(
    ("pooling", "kind"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, PoolingKind.CLS),
        ({"pooling_mode_mean_tokens": True, "include_prompt": True}, PoolingKind.MEAN),
        ({"pooling_mode_lasttoken": True}, PoolingKind.LAST),
        ({"pooling_mode": "mean"}, PoolingKind.MEAN),
        ({"pooling_mode": ["lasttoken"]}, PoolingKind.LAST),
    ],
)
def test_each_way_to_say_it(tmp_path: Path, pooling: dict[str, Any], kind: PoolingKind) -> None:
    write_modules(tmp_path, pooling, "Normalize")
    assert read_pooling(tmp_path, "auto", PoolingKind.CLS) == PoolingConfig(kind, normalize=True)
    assert read_pooling(tmp_path, "last", PoolingKind.CLS).kind is PoolingKind.LAST


def test_nothing_normalizes_where_no_step_does(tmp_path: Path) -> None:
    write_modules(tmp_path, {"pooling_mode_mean_tokens": True})
    assert not read_pooling(tmp_path, "auto", PoolingKind.CLS).normalize


def test_without_files_it_is_the_default_normalized(tmp_path: Path) -> None:
    assert read_pooling(tmp_path, "auto", PoolingKind.LAST) == PoolingConfig(PoolingKind.LAST)
    gguf = tmp_path / "model.gguf"
    gguf.touch()
    assert read_pooling(gguf, "mean", PoolingKind.LAST) == PoolingConfig(PoolingKind.MEAN)


@pytest.mark.parametrize(
    ("pooling", "further", "message"),
    [
        ({"pooling_mode_max_tokens": True}, (), "pools by pooling_mode_max_tokens"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, (), "each alone"),
        ({"pooling_mode": "weightedmean"}, (), "pools by weightedmean"),
        ({"pooling_mode_mean_tokens": True}, ("Dense",), "a step of type Dense"),
    ],
)
def test_what_is_not_built_is_refused(
    tmp_path: Path, pooling: dict[str, Any], further: tuple[str, ...], message: str
) -> None:
    write_modules(tmp_path, pooling, *further)
    with pytest.raises(ModelError, match=message):
        read_pooling(tmp_path, "auto", PoolingKind.CLS)
