"""Finding a model, its tokenizer and its limits: what a person gets to read when something does not fit."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models

from quire.inference.v1 import model_pb2
from services.worker.checkpoint.find import find_checkpoint, find_local
from services.worker.checkpoint.tokenizer_files import TokenizerFiles, read_tokenizer
from services.worker.config import WorkerConfig
from services.worker.errors import ModelError
from services.worker.ops.cpu import library
from services.worker.ops.interface import Ops
from services.worker.startup.load import describe_numerics, load_worker, resolve_device, resolve_dtype
from shared.config import ConfigError, build
from tests.simulated_gpu import pretend_properties
from tests.unit.worker.tiny_models import make_model

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "tiny"
    make_model("Mistral", sliding_window=64).save_pretrained(directory)
    write_tokenizer(directory)
    return directory


def write_tokenizer(directory: Path, **config: Any) -> None:
    Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")).save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def test_the_bundled_model_has_a_name_that_a_directory_of_that_name_takes(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    unnamed = find_local(WorkerConfig())
    assert unnamed is not None
    assert unnamed.path.is_dir()
    assert find_local(WorkerConfig(model="quire-chat")) == unnamed
    shutil.copytree(directory, "quire-chat")
    own = find_local(WorkerConfig(model="quire-chat"))
    assert own is not None
    assert own.path == Path("quire-chat")


def bundle_config(files: TokenizerFiles) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(model_pb2.TokenizerBundle.FromString(files.data).tokenizer_config_json)
    return config


def test_a_directory_is_served_under_its_name_and_as_it_was_typed(directory: Path) -> None:
    assert find_checkpoint(WorkerConfig(model=str(directory))).names == ("tiny", str(directory))
    named = find_checkpoint(WorkerConfig(model=str(directory), served_model_name=("one", "two")))
    assert named.names == ("one", "two")


def test_a_chat_template_of_the_users_replaces_the_models(directory: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text("{{ messages[0].content }}")
    for option in (str(file), "{{ messages[0].content }}"):
        checkpoint = find_checkpoint(WorkerConfig(model=str(directory), chat_template=option))
        assert bundle_config(checkpoint.read_tokenizer())["chat_template"] == "{{ messages[0].content }}"
    with pytest.raises(ModelError, match=r"--chat-template ./none\.jinja is neither a template nor a readable file"):
        find_checkpoint(WorkerConfig(model=str(directory), chat_template="./none.jinja")).read_tokenizer()


def test_the_models_sampling_parameters_can_be_left_out(directory: Path) -> None:
    (directory / "generation_config.json").write_text('{"do_sample": true, "temperature": 0.25, "top_k": 7}')
    for option, expected in (("auto", (0.25, 7)), ("vllm", (None, None))):
        model = find_checkpoint(WorkerConfig(model=str(directory), generation_config=option)).read_config()
        assert (model.default_sampling.temperature, model.default_sampling.top_k) == expected


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("/nowhere/model", "there is no directory /nowhere/model"),
        ("./model", "there is no directory ./model"),
        ("no/such/model", "no/such/model is neither a directory nor the name of a model"),
        ("quire-tests/there-is-no-such-model", "quire-tests/there-is-no-such-model is no directory, and "),
    ],
)
def test_a_model_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, name: str, sentence: str) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError) as refusal:
        find_checkpoint(WorkerConfig(model=name))
    assert str(refusal.value).startswith(sentence)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"tokenizer_class": "BertTokenizerFast"}, ["input_ids", "token_type_ids", "attention_mask"]),
        ({"tokenizer_class": "BertTokenizer"}, ["input_ids", "token_type_ids", "attention_mask"]),
        ({"tokenizer_class": "LlamaTokenizer"}, ["input_ids", "attention_mask"]),
        ({"tokenizer_class": "XLMRobertaTokenizerFast"}, ["input_ids", "attention_mask"]),
        ({"tokenizer_class": "LlamaTokenizer", "model_input_names": ["x"]}, ["x"]),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, None),
        ({"tokenizer_class": "OfMyOwn"}, None),
        ({"tokenizer_class": ["x"]}, None),
        ({}, None),
    ],
)
def test_a_tokenizer_names_its_inputs_if_it_can_get_pairs(
    config: dict[str, Any], expected: list[str] | None, tmp_path: Path
) -> None:
    write_tokenizer(tmp_path, **config)
    assert bundle_config(read_tokenizer(tmp_path, has_pairs=True)).get("model_input_names") == expected
    assert bundle_config(read_tokenizer(tmp_path)) == config


def test_the_chat_template_comes_along_wherever_it_is_kept(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, chat_template="old", bos_token="<s>")
    assert bundle_config(read_tokenizer(tmp_path))["chat_template"] == "old"
    (tmp_path / "chat_template.jinja").write_text("{{ new }}\n", encoding="utf-8")
    assert bundle_config(read_tokenizer(tmp_path)) == {"bos_token": "<s>", "chat_template": "{{ new }}\n"}
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert bundle_config(read_tokenizer(tmp_path))["chat_template"] == [
        {"name": "default", "template": "{{ new }}\n"},
        {"name": "tool_use", "template": "tools"},
    ]
    (tmp_path / "chat_template.jinja").unlink()
    named = [{"name": "default", "template": "old"}, {"name": "tool_use", "template": "old tools"}]
    write_tokenizer(tmp_path, chat_template=named)
    assert bundle_config(read_tokenizer(tmp_path))["chat_template"] == [
        {"name": "default", "template": "old"},
        {"name": "tool_use", "template": "tools"},
    ]


def test_special_tokens_of_older_checkpoints_are_kept(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, bos_token="<s>")
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<other>", "eos_token": "</s>"}))
    assert bundle_config(read_tokenizer(tmp_path)) == {"bos_token": "<s>", "eos_token": "</s>"}


def test_the_bundle_is_the_same_bytes_every_time_and_its_digest_is_theirs(directory: Path) -> None:
    first, second = read_tokenizer(directory), read_tokenizer(directory)
    assert first == second
    assert first.sha256 == hashlib.sha256(first.data).hexdigest()
    assert b"".join(first.chunks()) == first.data


def test_a_tokenizer_in_another_format_is_converted(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    transformers.LlamaConfig().save_pretrained(tmp_path)
    bundle = model_pb2.TokenizerBundle.FromString(read_tokenizer(tmp_path).data)
    assert Tokenizer.from_str(bundle.tokenizer_json.decode()).encode("ab").ids == [2]


def test_a_model_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no tokenizer\.json, and none can be made"):
        read_tokenizer(tmp_path)


def test_memory_and_context_decide_blocks_and_length(directory: Path) -> None:
    def limits(**options: Any) -> tuple[int, int]:
        engine = load_worker(WorkerConfig(model=str(directory), num_threads=1, **options), lambda *_: None)
        return engine.runner.limits.num_blocks, engine.runner.limits.max_model_len

    # A block of 16 tokens: 2 (keys and values) * 3 layers * 2 heads * 16 dimensions * 4 bytes each.
    per_block = 16 * 2 * 3 * 2 * 16 * 4
    assert limits(kv_cache_memory_bytes=10 * per_block + 1) == (10, 160)
    assert limits(kv_cache_memory_bytes=100 * per_block) == (100, 512)
    assert limits(num_gpu_blocks_override=7, block_size=32) == (7, 224)
    assert limits(num_gpu_blocks_override=7, max_model_len=100) == (7, 100)
    assert limits()[0] == 2**30 // per_block


def test_without_chunked_prefill_a_step_holds_the_longest_sequence(directory: Path, tmp_path: Path) -> None:
    """So that the scheduler, which computes each prompt in one step, finds that any prompt fits."""
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text()) | {"max_position_embeddings": 5000}
    (tmp_path / "config.json").write_text(json.dumps(config))

    def limits(**options: Any) -> tuple[int, int]:
        config = WorkerConfig(model=str(tmp_path), num_threads=1, device="cpu", num_gpu_blocks_override=400, **options)
        limits = load_worker(config, lambda *_: None).runner.limits
        return limits.max_num_batched_tokens, limits.max_model_len

    assert limits() == (2048, 5000)
    assert limits(enable_chunked_prefill=False) == (5000, 5000)
    assert limits(enable_chunked_prefill=False, max_model_len=3000) == (3000, 3000)
    assert limits(enable_chunked_prefill=False, max_model_len=300) == (2048, 300)
    assert limits(enable_chunked_prefill=False, max_num_batched_tokens=64) == (64, 5000)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_model_len": 513}, "--max-model-len is 513; the model takes at most 512 tokens"),
        ({"max_model_len": 200, "num_gpu_blocks_override": 12}, "--max-model-len is 200, but the KV cache holds 192"),
        ({"kv_cache_memory_bytes": 1000}, "1000 bytes of KV cache hold no block of 16 tokens"),
        ({"device": "tpu"}, "--device is 'tpu': use auto, cpu, cuda or cuda:N"),
        ({"dtype": "bfloat16"}, "--dtype is bfloat16, but on a CPU Quire computes in float32 only"),
    ],
)
def test_options_that_do_not_fit_are_refused(directory: Path, options: dict[str, Any], sentence: str) -> None:
    config = dataclasses.replace(WorkerConfig(model=str(directory), num_threads=1, device="cpu"), **options)
    with pytest.raises(ModelError) as refusal:
        load_worker(config, lambda *_: None)
    assert str(refusal.value).startswith(sentence)


def test_a_missing_gpu_is_named() -> None:
    with pytest.raises(ModelError, match=r"--device is cuda:99, but torch sees \d+ CUDA devices here"):
        resolve_device("cuda:99")


@pytest.mark.parametrize(("name", "index"), [("auto", 0), ("cuda", 0), ("cuda:0", 0), ("cuda:1", 1)])
def test_a_gpu_has_its_index(monkeypatch: pytest.MonkeyPatch, name: str, index: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    pretend_properties(monkeypatch, (8, 0), (9, 0))
    device = resolve_device(name)
    assert device == torch.device("cuda", index)
    assert torch.cuda._utils._get_device_index(device) == index  # raises as torch.cuda.set_device does


def test_auto_takes_the_first_gpu_that_quire_runs_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    pretend_properties(monkeypatch, (7, 5), (8, 6))
    assert resolve_device("auto") == torch.device("cuda", 1)
    assert not caplog.records
    pretend_properties(monkeypatch, (7, 5), (6, 1), name="Tesla T4")
    assert resolve_device("auto") == torch.device("cpu")
    assert [record.message for record in caplog.records] == [
        "Tesla T4 has compute capability 7.5; Quire runs on GPUs of 8.0 and higher (Ampere and later): "
        "running on the CPU"
    ]


@pytest.mark.parametrize("name", ["auto", "cpu", "cpu:0"])
def test_without_a_gpu_there_is_one_cpu(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device(name) == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:²"])
def test_a_device_that_is_misspelt_is_named(name: str) -> None:
    with pytest.raises(ModelError, match="use auto, cpu, cuda or cuda:N"):
        resolve_device(name)


def test_dtypes_of_a_gpu_follow_the_checkpoint() -> None:
    cuda = torch.device("cuda", 0)
    assert resolve_dtype("auto", "float16", cuda) is torch.float16
    assert resolve_dtype("bfloat16", "float16", cuda) is torch.bfloat16
    assert resolve_dtype("auto", "bfloat16", CPU) is torch.float32


def test_dummy_weights_need_no_checkpoint(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((directory / "config.json").read_bytes())
    write_tokenizer(tmp_path)
    config = WorkerConfig(model=str(tmp_path), load_format="dummy", num_gpu_blocks_override=4, num_threads=1)
    assert load_worker(config, lambda *_: None).runner.limits.vocab_size == 199


@pytest.mark.parametrize(
    "option",
    [
        {"tensor_parallel_size": 2},
        {"pipeline_parallel_size": 2},
        {"speculative_model": "draft"},
        {"num_speculative_tokens": 3},
        {"speculative_draft_tensor_parallel_size": 1},
        {"enable_lora": True},
        {"lora_modules": ["a=b"]},
        {"max_loras": 4},
        {"max_lora_rank": 64},
    ],
    ids=lambda option: next(iter(option)),
)
def test_what_is_not_built_stops_the_start_and_names_itself(option: dict[str, Any]) -> None:
    name = next(iter(option)).replace("_", "-")
    with pytest.raises(ConfigError, match=f"--{name} is not implemented yet"):
        build(WorkerConfig, option, environment={})


def test_a_worker_without_its_kernels_says_so_in_a_warning_and_to_who_started_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing() -> None:
        raise library.LibraryError("the compiled kernels are older than their sources")

    monkeypatch.setattr(library, "load", missing)
    config = WorkerConfig(model=str(directory), num_threads=1, device="cpu", num_gpu_blocks_override=4)
    engine = load_worker(config, lambda *_: None)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [engine.fallback]
    assert engine.fallback == (
        "the compiled kernels are older than their sources; running plain torch, slow and not batch-invariant"
    )
    with pytest.raises(ModelError, match=r"^--batch-invariant is set, but the compiled kernels are older"):
        load_worker(dataclasses.replace(config, batch_invariant=True), lambda *_: None)


@pytest.mark.parametrize(
    ("name", "device", "invariant", "expected"),
    [
        ("cpu", "cpu", True, r"^compiled kernels on \d+ threads, batch-invariant"),
        ("triton", "cuda", False, "^Triton kernels; outputs may depend on the rest of the batch$"),
        ("triton", "cuda", True, "^Triton kernels, batch-invariant: .* which costs speed$"),
    ],
)
def test_the_start_says_what_tokens_depend_on(name: str, device: str, invariant: bool, expected: str) -> None:
    ops = SimpleNamespace(name=name, device=torch.device(device), batch_invariant=invariant)
    assert re.search(expected, describe_numerics(cast(Ops, ops), None))
    assert describe_numerics(cast(Ops, ops), "no kernels") == "no kernels"
