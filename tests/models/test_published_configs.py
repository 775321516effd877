"""config.json of published checkpoints, in the spellings of their time: each is read, gives the number of parameters
that was published, and names the tensors that the checkpoint holds.

published/*.json has them. `parameters` counts the language model, without layers that only predict further tokens.
`tensors`: suffixes of names by their prefix. In a prefix, `*` stands for each layer and then for each expert, `3+` for
the layers from the third on, and `end` for the number of layers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from services.worker.errors import ModelError
from services.worker.models import num_parameters, read_model_config
from services.worker.startup.create_ops import create_ops
from services.worker.weights.open import open_weights

PUBLISHED: dict[str, dict[str, Any]] = {
    name: entry
    for file in sorted((Path(__file__).parent / "published").glob("*.json"))
    for name, entry in json.loads(file.read_text(encoding="utf-8")).items()
}
NUM_LAYERS, NUM_EXPERTS = 4, 16


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_gives_the_published_number_of_parameters(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[name]["config"]))
    assert num_parameters(read_model_config(tmp_path)) == pytest.approx(PUBLISHED[name]["parameters"], rel=0.01)


@pytest.mark.parametrize("name", [name for name, entry in PUBLISHED.items() if "tensors" in entry])
def test_the_published_tensors_are_those_of_the_network(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(shrunk(PUBLISHED[name]["config"])))
    names = [
        start + suffix
        for prefix, suffixes in PUBLISHED[name]["tensors"].items()
        for start in prefixes(prefix.split("."), (NUM_LAYERS, NUM_EXPERTS))
        for suffix in suffixes
    ]
    # Names are checked before shapes, and all tensors here are empty.
    save_file({one: torch.zeros(0) for one in names}, tmp_path / "model.safetensors")
    config = read_model_config(tmp_path)
    ops = create_ops(torch.device("cpu"), torch.float32)
    with pytest.raises(ModelError, match=r"is \(0,\); config\.json says"):
        open_weights(tmp_path, config, ops, "auto", None, lambda _: None)


def shrunk(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the configuration with fewer layers and experts."""
    if "text_config" in config:
        return config | {"text_config": shrunk(config["text_config"])}
    keys = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
    key = next((key for key in keys if key in config), "num_hidden_layers")
    num_layers = config.get(key)
    config = {
        name: value[:NUM_LAYERS] if isinstance(value, list) and len(value) == num_layers else value
        for name, value in config.items()
    }
    experts = ("num_experts", "num_local_experts", "n_routed_experts")
    fewer: dict[str, Any] = {key: NUM_LAYERS} | {name: NUM_EXPERTS for name in experts if name in config}
    if "attention_types" in config:  # of GPT-Neo
        fewer["attention_types"] = [[["global", "local"], NUM_LAYERS // 2]]
    return config | fewer


def prefixes(parts: Sequence[str], counts: Sequence[int]) -> Iterator[str]:
    """Yields the names that a pattern stands for. `counts`: numbers of layers and of experts."""
    place = next((at for at, part in enumerate(parts) if part in ("*", "end") or part.endswith("+")), None)
    if place is None:
        yield ".".join(parts)
        return
    part, (count, *others) = parts[place], counts
    first = int(part[:-1]) if part.endswith("+") else count if part == "end" else 0
    for number in range(first, count + (part == "end")):
        yield from prefixes([*parts[:place], str(number), *parts[place + 1 :]], others)
