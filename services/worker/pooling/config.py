"""Reads how a model pools hidden states, from its sentence-transformers files. Without such files, a decoder takes the
last token's hidden state, and an encoder the first token's.

A sentence-transformers directory has a file modules.json, which lists steps: the model itself, pooling (with its own
config.json), and perhaps normalization (Reimers and Gurevych, Sentence-BERT, 2019, section 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from services.worker.errors import ModelError
from services.worker.fields import MAX_SIZE, Fields, reading
from services.worker.json_files import is_inside, read_any_json, read_json

MAX_DIMENSIONS = 4096  # of lengths of shortened embeddings, in the list of those that are allowed


class PoolingKind(Enum):
    LAST = "last"  # the last token's hidden state
    MEAN = "mean"  # the mean of all tokens' hidden states
    CLS = "cls"  # the first token's hidden state


CHOICES = ("auto", *(kind.value for kind in PoolingKind))

_MODES = {
    "pooling_mode_lasttoken": PoolingKind.LAST,
    "pooling_mode_mean_tokens": PoolingKind.MEAN,
    "pooling_mode_cls_token": PoolingKind.CLS,
}
# Newer files have no flags such as those in _MODES, but one of these names in `pooling_mode`.
_NAMES = {"lasttoken": PoolingKind.LAST, "mean": PoolingKind.MEAN, "cls": PoolingKind.CLS}


@dataclass(frozen=True, slots=True)
class PoolingConfig:
    kind: PoolingKind
    normalize: bool = True  # to length 1, unless the request decides
    is_matryoshka: bool = False  # trained so that the first values of a vector alone are an embedding, too
    matryoshka_dimensions: tuple[int, ...] = ()  # allowed lengths of shortened embeddings; empty: any length
    includes_prompt: bool = True  # whether the hidden states of a prompt's tokens are pooled, too

    @property
    def needs_all_tokens(self) -> bool:
        """Whether pooling needs the hidden states of all tokens. If so, a prefix in the KV cache must be computed
        again."""
        return self.kind is not PoolingKind.LAST


def read_pooling(path: Path, option: str, default: PoolingKind) -> PoolingConfig:
    """Returns how the model pools. `path`: a checkpoint's directory, or a GGUF file, which has no pooling settings.
    `option`: one of `CHOICES`; "auto" takes the checkpoint's settings, or `default` if there are none. Raises
    ModelError for settings that are not supported."""
    kind, normalize, includes_prompt = default, True, True
    modules = None if path.is_file() else _read_modules(path)
    if modules is not None:
        kind, normalize, includes_prompt = _follow(path, modules, default)
    if option != "auto":
        kind, includes_prompt = PoolingKind(option), True
    config = Fields({} if path.is_file() else read_json(path / "config.json") or {}, str(path / "config.json"))
    dimensions = config.values.get("matryoshka_dimensions") or []
    are_sizes = isinstance(dimensions, list) and all(
        isinstance(size, int) and 0 < size <= MAX_SIZE for size in dimensions
    )
    if not are_sizes or len(dimensions) > MAX_DIMENSIONS:
        raise config.wrong("matryoshka_dimensions", f"a list of at most {MAX_DIMENSIONS:,} sizes")
    is_matryoshka = bool(dimensions or config.flag("is_matryoshka"))
    return PoolingConfig(kind, normalize, is_matryoshka, tuple(dimensions), includes_prompt)


def _read_modules(directory: Path) -> list[dict[str, Any]] | None:
    path = directory / "modules.json"
    modules = read_any_json(path)
    if modules is None:
        return None
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ModelError(f"{path} holds no list of modules")
    return modules


def _follow(directory: Path, modules: list[dict[str, Any]], default: PoolingKind) -> tuple[PoolingKind, bool, bool]:
    """Returns the kind of pooling, whether vectors are normalized, and whether pooling includes a prompt's tokens."""
    kind, normalize, includes_prompt = default, False, True
    for module in modules:
        name = str(module.get("type", "")).rpartition(".")[2]
        if name == "Pooling":
            path = directory / _inside(directory, str(module.get("path", ""))) / "config.json"
            with reading(path):
                config = Fields(read_json(path) or {}, str(path))
                kind = _read_kind(directory, config.values)
                includes_prompt = config.flag("include_prompt", True)
        elif name == "Normalize":
            normalize = True
        elif name != "Transformer":
            raise ModelError(f"{directory / 'modules.json'} has a step of type {name}, which is not supported")
    return kind, normalize, includes_prompt


def _inside(directory: Path, folder: str) -> str:
    """Returns `folder`. Raises ModelError if it lies outside `directory`."""
    if not is_inside(folder):
        raise ModelError(f"{directory / 'modules.json'} names {folder!r}, which is outside the model's directory")
    return folder


def _read_kind(directory: Path, config: Mapping[str, Any]) -> PoolingKind:
    given = config.get("pooling_mode")
    if given is not None:
        modes = [given] if isinstance(given, str) else list(given)
        kinds = [_NAMES.get(mode) for mode in modes]
    else:
        modes = [name for name, is_set in config.items() if name.startswith("pooling_mode_") and is_set]
        kinds = [_MODES.get(mode) for mode in modes]
    if len(kinds) != 1 or kinds[0] is None:
        raise ModelError(
            f"{directory} pools by {', '.join(map(str, modes)) or 'nothing'}; supported are the last token, the first "
            "token and the mean, each alone"
        )
    return kinds[0]
