"""Damaged and hostile checkpoints of each kind end in one sentence, in seconds and before memory is taken.

tests/unit/worker/test_broken_models.py has what all architectures share: JSON files, safetensors headers, tokenizers.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from services.worker.errors import ModelError
from services.worker.ops.reference import ReferenceOps
from tests.models.cases import ALL
from tests.models.tiny import save
from tests.unit.worker.memory import growth_below
from tests.unit.worker.quantization.stored import fp8_in_blocks
from tests.unit.worker.tiny_models import make_decoder

pytestmark = pytest.mark.usefixtures("one_thread")

MAX_GROWTH = 256 << 20  # bytes
MAX_SECONDS = 30.0  # of CPU time; what is refused late takes minutes
Break = Callable[[Path], None]
# Sound checkpoints: a case's, or one that the module makes of it.
BASES = {
    "latent": "deepseek_v3",
    "stacked": "gpt_oss",
    "windows": "gemma2",
    "text": "gemma3",
    "dense": "llama",
    "experts": "mixtral",
    "sparse": "qwen3_moe",
    "own values": "gemma4_text, layers that share keys",
    "groups": "gpt_neo",
    "generic": "arcee, transformers' code",
}


def sets(**values: Any) -> Break:
    """Changes values of config.json; those of an object inside it if the name has two parts, joined by `__`."""

    def apply(directory: Path) -> None:
        path = directory / "config.json"
        config = json.loads(path.read_text())
        for name, value in values.items():
            outer, _, inner = name.partition("__")
            if inner:
                config[outer][inner] = value
            else:
                config[name] = value
        path.write_text(json.dumps(config))

    return apply


def lacks(name: str) -> Break:
    def apply(directory: Path) -> None:
        path = directory / "config.json"
        config = json.loads(path.read_text())
        del config[name]
        path.write_text(json.dumps(config))

    return apply


def quantized(**settings: Any) -> Break:
    return sets(quantization_config=settings)


def tensors(change: Callable[[dict[str, Tensor]], object]) -> Break:
    def apply(directory: Path) -> None:
        path = directory / "model.safetensors"
        content = {name: tensor.clone() for name, tensor in load_file(path).items()}
        change(content)
        path.unlink()
        save_file(content, path)

    return apply


def stored(name: str, change: Callable[[Tensor], Tensor]) -> Break:
    """Changes the tensor whose name ends with `name`."""

    def apply(content: dict[str, Tensor]) -> None:
        full = next(each for each in content if each.endswith(name))
        content[full] = change(content[full]).contiguous()

    return tensors(apply)


def without(name: str) -> Break:
    return tensors(lambda content: content.pop(next(each for each in content if each.endswith(name))))


def both(*breaks: Break) -> Break:
    def apply(directory: Path) -> None:
        for each in breaks:
            each(directory)

    return apply


def in_blocks(change: Callable[[Tensor], Tensor] = lambda scales: scales, **settings: Any) -> Break:
    """Stores the projections in fp8, with scales of blocks that `change` damages."""
    store = fp8_in_blocks(24, 40, "weight_scale_inv")

    def apply(content: dict[str, Tensor]) -> None:
        for name in [each for each in content if each.endswith("_proj.weight")]:
            _, parts = store(name, content[name])
            content |= {name.removesuffix("weight") + suffix: part for suffix, part in parts.items()}
            scales = name.removesuffix("weight") + "weight_scale_inv"
            content[scales] = change(content[scales]).contiguous()

    return both(tensors(apply), quantized(quant_method="fp8", **({"weight_block_size": [24, 40]} | settings)))


def mxfp4(suffix: str = "", shape: tuple[int, ...] | None = None) -> Break:
    """Stores the experts in MXFP4, the tensors that end with `suffix` in another shape."""

    def apply(content: dict[str, Tensor]) -> None:
        for name in [each for each in content if each.endswith(("gate_up_proj", "down_proj"))]:
            count, inputs, outputs = content.pop(name).shape
            groups = (count, outputs, inputs // 32)
            for end, sizes in (("_blocks", (*groups, 16)), ("_scales", groups)):
                wanted = shape if end == suffix and shape is not None else sizes
                content[name + end] = torch.full(wanted, 120, dtype=torch.uint8)

    return both(tensors(apply), quantized(quant_method="mxfp4"))


def gptq(change: Callable[[dict[str, Tensor]], object] = lambda parts: None, **settings: Any) -> Break:
    """Stores the projections in GPTQ of 4 bits."""

    def apply(content: dict[str, Tensor]) -> None:
        for name in [each for each in content if each.endswith("_proj.weight")]:
            rows, columns = content.pop(name).shape
            parts = {
                "qweight": torch.zeros(columns // 8, rows, dtype=torch.int32),
                "qzeros": torch.zeros(columns // 32, rows // 8, dtype=torch.int32),
                "scales": torch.ones(columns // 32, rows, dtype=torch.float16),
                "g_idx": torch.arange(columns, dtype=torch.int32) // 32,
            }
            change(parts)
            content |= {name.removesuffix("weight") + suffix: part for suffix, part in parts.items()}

    return both(tensors(apply), quantized(**({"quant_method": "gptq", "bits": 4, "group_size": 32} | settings)))


def sharded(change: Callable[[dict[str, str]], object], cut: int = 0) -> Break:
    """Divides the weights into two files with an index, and cuts the last bytes off the second."""

    def apply(directory: Path) -> None:
        content = load_file(directory / "model.safetensors")
        names = sorted(content)
        places: dict[str, str] = {}
        for number, chosen in enumerate((names[::2], names[1::2]), 1):
            file = f"model-{number}-of-2.safetensors"
            save_file({name: content[name].clone() for name in chosen}, directory / file)
            places |= dict.fromkeys(chosen, file)
        (directory / "model.safetensors").unlink()
        change(places)
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
        if cut:
            path = directory / "model-2-of-2.safetensors"
            path.write_bytes(path.read_bytes()[:-cut])

    return apply


def moved(file: str) -> Break:
    """Says of the first tensor that it is in another file."""
    return sharded(lambda places: places.update({min(places): file}))


def only_pickled(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    (directory / "pytorch_model.bin").write_bytes(b"\x80\x04")


def mistral(**params: Any) -> Break:
    """Mistral's own files."""

    def apply(directory: Path) -> None:
        sizes = {"dim": 64, "n_layers": 1, "n_heads": 4, "hidden_dim": 96, "vocab_size": 199, "norm_eps": 1e-5}
        (directory / "config.json").unlink()
        (directory / "model.safetensors").rename(directory / "consolidated.safetensors")
        (directory / "params.json").write_text(json.dumps(sizes | params))

    return apply


def names_layers_again_and_again(directory: Path) -> None:
    sets(mlp_only_layers=[0] * (2 * 10**6), num_hidden_layers=4096)(directory)


def names_layers_beyond_the_last(directory: Path) -> None:
    values: dict[str, Any] = {str(10**6 + number): {} for number in range(300_000)}
    sets(per_layer_config=values, num_hidden_layers=4096, layer_types=None)(directory)


def names_types_of_too_many_layers(directory: Path) -> None:
    sets(attention_types=[[["global"], 4096]] * 20_000, num_layers=4096)(directory)


HUGE = 10**18
ROWS: dict[str, tuple[str, Break, str]] = {
    # Sizes that decide how much is made.
    "experts": ("experts", sets(num_local_experts=10**9), "num_local_experts is 1000000000"),
    "experts and layers": ("latent", sets(n_routed_experts=4096, num_hidden_layers=4096), "weights"),
    "experts of nothing": ("experts", sets(num_local_experts=4096), "lacks"),
    "no experts": ("experts", sets(num_local_experts=0), "num_local_experts is 0"),
    "more chosen than there are": ("experts", sets(num_experts_per_tok=5), "num_experts_per_tok is 5"),
    "none chosen": ("latent", sets(num_experts_per_tok=0), "num_experts_per_tok is 0"),
    "layers named many times": ("sparse", names_layers_again_and_again, "lacks"),
    "values of too many layers": ("own values", names_layers_beyond_the_last, "lacks"),
    "types of too many layers": ("groups", names_types_of_too_many_layers, "attention_types is a list of"),
    "more layers than weights": ("stacked", sets(num_hidden_layers=4000, layer_types=None), "lacks"),
    "layers": ("latent", sets(num_hidden_layers=10**9), "num_hidden_layers is 1000000000"),
    "head size 0": ("windows", sets(head_dim=0), "head_dim is 0"),
    "head size -1": ("windows", sets(head_dim=-1), "head_dim is -1"),
    "head size": ("windows", sets(head_dim=10**12), "head_dim is 1000000000000"),
    "vocabulary": ("stacked", sets(vocab_size=10**12), "vocab_size is 1000000000000"),
    "latent vector of 0": ("latent", sets(kv_lora_rank=0), "kv_lora_rank is 0"),
    "latent vector": ("latent", sets(kv_lora_rank=HUGE), "kv_lora_rank is 1000000000000000000"),
    "rotated part": ("latent", sets(qk_rope_head_dim=7), "RoPE rotates 7 dimensions"),
    "groups of experts": ("latent", sets(n_group=3), "n_group is 3; expected a divisor of 8 experts"),
    "chosen groups": ("latent", sets(topk_group=5), "topk_group is 5"),
    # Layers that differ.
    "window 0": ("windows", sets(sliding_window=0), "sliding_window is 0"),
    "window -1": ("windows", sets(sliding_window=-1), "sliding_window is -1"),
    "window of text": ("windows", sets(sliding_window="x"), 'sliding_window is "x"'),
    "too few layer types": ("stacked", sets(layer_types=["full_attention"]), "layer_types is a list of 1 values"),
    "layer type": ("windows", sets(layer_types=["full_attention", "x", "x"]), "layer_types"),
    "layer type of another type": ("stacked", sets(layer_types=[[], {}, 1]), "layer_types"),
    "nested rotation": ("dense", sets(rope_parameters={"rope_parameters": [[]], "rope_type": {}}), "rope_type is"),
    "rotations by layer": ("text", sets(text_config__rope_parameters={"full_attention": []}), "rope_parameters"),
    # Formats of weights.
    "method": ("dense", quantized(quant_method="x1"), "is quantized with x1, which is not supported"),
    "bits": ("dense", quantized(quant_method="gptq", bits=10**9, group_size=32), "to 1000000000 bits"),
    "bits of text": ("dense", quantized(quant_method="awq", bits="4", group_size=32), "to 4 bits"),
    "bits in a list": ("dense", quantized(quant_method="gptq", bits=[4], group_size=32), "to [4] bits"),
    "group size 0": ("dense", gptq(group_size=0), "a group size is 0"),
    "group size": ("dense", gptq(group_size=HUGE), "a group size is 1000000000000000000"),
    "group of a group": ("dense", gptq(lambda parts: parts["g_idx"].fill_(2**30)), "g_idx does not assign"),
    "group below 0": ("dense", gptq(lambda parts: parts["g_idx"].fill_(-1)), "g_idx does not assign"),
    "pattern": ("dense", gptq(dynamic={"(": {}}), "is no regular expression"),
    "block size 0": ("dense", in_blocks(weight_block_size=[0, 0]), "a group size is 0"),
    "block size": ("dense", in_blocks(weight_block_size=[10**9, 1]), "a group size is 1000000000"),
    "block size of one": ("dense", in_blocks(weight_block_size=[8]), "expected [outputs, inputs]"),
    "blocks": ("dense", in_blocks(lambda scales: scales[:1]), "weight_scale_inv in"),
    "scales of another type": ("dense", in_blocks(lambda scales: scales.int()), "is I32"),
    "excluded": ("dense", in_blocks(modules_to_not_convert=7), "quantization_config of"),
    "excluded text": ("dense", in_blocks(modules_to_not_convert="lm_head"), "modules_to_not_convert"),
    "odd blocks": ("stacked", mxfp4("_blocks", (5, 64, 2, 15)), "_blocks in"),
    "odd scales": ("stacked", mxfp4("_scales", (5, 64, 3)), "_scales in"),
    "blocks of no experts": ("stacked", quantized(quant_method="mxfp4"), "lacks"),
    # Tensors.
    "norm missing": ("latent", without("kv_a_layernorm.weight"), "lacks model.layers.0.self_attn.kv_a_"),
    "expert missing": ("latent", without("experts.7.down_proj.weight"), "lacks model.layers"),
    "sinks missing": ("stacked", without("sinks"), "lacks model.layers.0.self_attn.sinks"),
    "experts of another count": ("stacked", stored("gate_up_proj", lambda t: t[:4]), "gate_up_proj in"),
    "router of another type": ("stacked", stored("router.weight", lambda t: t.int()), "is I32"),
    "matrix of another shape": ("text", stored("q_proj.weight", lambda t: t[:, :-1]), "q_proj.weight in"),
    "unknown": ("latent", tensors(lambda t: t.update(extra=torch.zeros(3))), "holds extra, which"),
    "unknown in a layer": ("text", stored("norm.weight", lambda t: t[:0]), "norm.weight in"),
    "cut": ("latent", sharded(lambda _: None, cut=16), "model-2-of-2.safetensors cannot be read"),
    "file of a tensor": ("latent", moved("model-2-of-2.safetensors"), "in a file that lacks"),
    "file missing": ("stacked", moved("none.safetensors"), "none.safetensors cannot be"),
    "file outside": ("stacked", moved("../x.safetensors"), "outside the model's directory"),
    "pickled": ("experts", only_pickled, "convert them: python -c"),
    # Models inside others.
    "no text": ("text", lacks("text_config"), "lacks"),
    "text of another type": ("text", sets(text_config__model_type="x"), "its language model is x, which is not"),
    "text of text": ("text", sets(text_config="x"), 'text_config is "x"; expected an object'),
    "recurrent text": ("text", sets(text_config__model_type="qwen3_next"), "models with recurrent state"),
    "layers of text": ("text", sets(text_config__num_hidden_layers=10**9), "num_hidden_layers is 1000000000"),
    # Mistral's own files.
    "mistral of nothing": ("dense", mistral(dim=0), "hidden_size is 0"),
    "mistral's experts": ("dense", mistral(moe={"num_experts": 10**9}), "params.json has moe"),
    "mistral's layers": ("dense", mistral(n_layers=HUGE), "num_hidden_layers is 1000000000000000000"),
    # transformers' code.
    "generic layers": ("generic", sets(num_hidden_layers=10**9), "num_hidden_layers is 1000000000"),
    "generic heads": ("generic", sets(num_attention_heads=0), "config.json"),
    "generic rotation": ("generic", sets(rope_parameters={"rope_type": [[]]}), "config.json"),
    "generic lists": ("generic", sets(hidden_size=[[[]]], vocab_size=[1]), "config.json"),
    "generic weights": ("generic", stored("up_proj.weight", lambda t: t[:-1]), "up_proj.weight in"),
    "generic unknown": ("generic", tensors(lambda t: t.update(extra=torch.zeros(3))), "holds extra, which"),
}  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns the directory of a sound checkpoint, which is not to be changed."""
    made: dict[str, Path] = {}

    def directory_of(base: str) -> Path:
        if base not in made:
            made[base] = tmp_path_factory.mktemp(base)
            save(made[base], next(case for case in ALL if str(case) == BASES[base]))
        return made[base]

    return directory_of


@pytest.mark.parametrize("name", ROWS)
def test_a_hostile_checkpoint_is_refused_in_one_sentence(
    name: str, sound: Callable[[str], Path], tmp_path: Path
) -> None:
    base, break_it, sentence = ROWS[name]
    directory = tmp_path / "model"
    shutil.copytree(sound(base), directory)
    break_it(directory)
    start = time.process_time()
    with growth_below(MAX_GROWTH), pytest.raises(ModelError) as refusal:
        load(directory)
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert time.process_time() - start < MAX_SECONDS


def load(directory: Path) -> None:
    make_decoder(directory, ReferenceOps(torch.device("cpu"), torch.float32))


SOUND: dict[str, tuple[str, Break]] = {
    **{base: (base, lambda _: None) for base in BASES},
    "fp8 in blocks": ("dense", in_blocks()),
    "MXFP4": ("stacked", mxfp4()),
    "GPTQ": ("dense", gptq()),
    "two files": ("latent", sharded(lambda _: None)),
}


@pytest.mark.parametrize("name", SOUND)
def test_what_the_damage_is_done_to_is_sound(name: str, sound: Callable[[str], Path], tmp_path: Path) -> None:
    base, change = SOUND[name]
    shutil.copytree(sound(base), tmp_path / "model")
    change(tmp_path / "model")
    load(tmp_path / "model")


def test_code_of_a_checkpoint_is_never_run(sound: Callable[[str], Path], tmp_path: Path) -> None:
    for base in ("generic", "dense"):
        directory = tmp_path / base
        shutil.copytree(sound(base), directory)
        (directory / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Own: pass\n")
        code = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}
        sets(auto_map=code, trust_remote_code=True)(directory)
        load(directory)
        sets(architectures=["Own"], model_type="own")(directory)
        with pytest.raises(ModelError, match="its own code"):
            load(directory)
    assert not (tmp_path / "ran").exists()
