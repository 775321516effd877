"""`quire serve A B`: the parts of each model, the options of each, and what is refused before the start."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from quire.cli import host_share, serve
from quire.cli.http_probe import Answer
from quire.cli.part import PartSpec
from quire.cli.stack import Stack, part_environment, part_specs
from quire.cli.stack_options import build_stack, read_options
from shared.config import ConfigError
from shared.host_memory import GIB, Available
from tests.unit.cli.test_replicas import RUN, sockets, values

MODELS = Path(__file__).parents[3] / "quire" / "models"
CHAT, DRAFT = str(MODELS / "quire-chat"), str(MODELS / "quire-chat-draft")


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The host's GPUs: none at first."""
    found: list[str] = []
    monkeypatch.setattr(host_share, "visible_gpus", lambda _: tuple(found))
    return found


@pytest.fixture(autouse=True)
def host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plenty, and always the same: what is available on a real host changes from one call to the next."""
    monkeypatch.setattr(host_share, "available_memory", lambda: Available(64 * GIB, "this host"))


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_share, "available_memory", lambda: Available(GIB, "this host"))


def parse(*words: str) -> Stack:
    flags = vars(serve._parser().parse_args(words))
    del flags["verbose"]
    return build_stack(flags, read_options(flags.pop("config")))


def write(directory: Path, text: str) -> str:
    file = directory / "models.toml"
    file.write_text(text)
    return str(file)


def specs(stack: Stack) -> dict[str, PartSpec]:
    return {spec.name: spec for spec in part_specs(stack, RUN)}


def tables(*models: dict[str, Any], **common: Any) -> Stack:
    return build_stack({}, {**common, "models": list(models)})


def test_each_model_has_schedulers_and_workers_and_all_share_the_routers() -> None:
    parts = specs(parse(CHAT, DRAFT, "--routers", "2", "--workers", "2"))

    assert list(parts) == [
        *("gateway", "router-0", "router-1", "scheduler-0 of quire-chat", "scheduler-1 of quire-chat-draft"),
        *("worker-0 of quire-chat", "worker-1 of quire-chat"),
        *("worker-2 of quire-chat-draft", "worker-3 of quire-chat-draft"),
    ]
    for name in ("router-0", "router-1"):
        assert values(parts[name], "--scheduler") == sockets("scheduler-0", "scheduler-1")
    assert values(parts["scheduler-0 of quire-chat"], "--worker") == sockets("worker-0", "worker-1")
    assert values(parts["scheduler-1 of quire-chat-draft"], "--worker") == sockets("worker-2", "worker-3")
    assert values(parts["worker-1 of quire-chat"], "--model") == [CHAT]
    assert values(parts["worker-2 of quire-chat-draft"], "--model") == [DRAFT]
    assert values(parts["worker-2 of quire-chat-draft"], "--listen") == sockets("worker-2")
    assert all(values(spec, "--workers-on-host") == ["4"] for name, spec in parts.items() if "worker-" in name)


def test_parts_of_one_kind_are_stopped_together_whatever_their_model() -> None:
    kinds = [spec.kind for spec in specs(parse(CHAT, DRAFT)).values()]
    assert kinds == ["gateway", "router", "scheduler", "scheduler", "worker", "worker"]


def test_the_start_waits_for_the_scheduler_of_each_model_that_has_one() -> None:
    stack = tables({"model": CHAT, "schedulers": 2}, {"model": DRAFT})
    awaited = {name for name, spec in specs(stack).items() if spec.is_awaited and "scheduler" in name}
    assert awaited == {"scheduler-2 of quire-chat-draft"}


def test_one_model_is_served_as_without_a_list() -> None:
    assert (
        parse(CHAT) == build_stack({"model": CHAT}, {}) == build_stack({"model": [CHAT]}, {}) == tables({"model": CHAT})
    )
    assert parse(CHAT).models == ()
    assert parse("--model", CHAT) == parse(CHAT, "--model", CHAT) == parse(CHAT)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((CHAT, DRAFT, "--model", CHAT), "the model is given twice"),
        ((CHAT, "--port", "1", DRAFT), "is one word too many: give all models one after another"),
        (("--served-model-name", "a", CHAT), "takes every word up to the next flag"),
    ],
)
def test_models_that_are_not_one_after_another_are_told(
    words: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(*words)
    assert complaint in capsys.readouterr().err


def test_ports_and_step_logs_are_numbered_over_all_models() -> None:
    parts = specs(parse(CHAT, DRAFT, "--workers", "2", "--metrics-port", "9100", "--step-log", "/var/s.jsonl"))
    given = {name: values(spec, "--metrics-port")[0] for name, spec in parts.items()}
    assert list(given.values()) == ["9100", "9101", "9102", "9106", "9103", "9107", "9111", "9115"]
    assert values(parts["worker-3 of quire-chat-draft"], "--step-log") == ["/var/s-3.jsonl"]


def test_a_table_has_the_options_of_one_model(tmp_path: Path) -> None:
    text = f"""
max-model-len = 512
block-size = 32
[[models]]
model = "{CHAT}"
served-model-name = ["chat", "default"]
workers = 2
model_weight = 10
[[models]]
model = "{DRAFT}"
max-model-len = 256
kv-cache-memory-bytes = 1000000
num-threads = 3
enable-prefix-caching = false
"""
    parts = specs(parse("--config", write(tmp_path, text), "--block-size", "64"))

    chat, draft = parts["worker-1 of chat"], parts["worker-2 of quire-chat-draft"]
    assert values(chat, "--served-model-name") == ["chat", "default"]
    assert values(chat, "--max-model-len") == ["512"], "from the top level"
    assert values(draft, "--max-model-len") == ["256"], "the table's own"
    assert values(chat, "--block-size") == values(draft, "--block-size") == ["64"], "flags come first"
    assert values(draft, "--kv-cache-memory-bytes") == ["1000000"]
    assert (values(draft, "--num-threads"), values(chat, "--num-threads")) == (["3"], [])
    assert values(parts["scheduler-0 of chat"], "--model-weight") == ["10"]
    assert "--no-enable-prefix-caching" in parts["scheduler-1 of quire-chat-draft"].argv
    assert "--no-enable-prefix-caching" not in parts["scheduler-0 of chat"].argv


def test_the_environment_comes_before_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_MAX_MODEL_LEN", "100")
    stack = tables({"model": CHAT, "max-model-len": 200}, {"model": DRAFT})
    assert [group.config.max_model_len for group in stack.of_kind("worker")] == [100, 100]
    assert "QUIRE_MAX_MODEL_LEN" not in part_environment(stack, RUN)
    monkeypatch.setenv("QUIRE_MODEL", CHAT)
    with pytest.raises(ConfigError, match="QUIRE_MODEL names a model, and the configuration file has"):
        tables({"model": CHAT})


def test_a_file_can_list_models_without_tables(tmp_path: Path) -> None:
    assert parse("--config", write(tmp_path, f'model = ["{CHAT}", "{DRAFT}"]')) == parse(CHAT, DRAFT)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[models]\nmodel = 'x'", r"has a table, \[models\]"),
        ("model = []", "model in the configuration file is an empty list: leave it out for the bundled model"),
        ("models = 3", r"write one \[\[models\]\] with two brackets for each model"),
        ("[[models]]\nmax-model-len = 1\nmax_model_len = 1", "gives max-model-len twice"),
        ("[[models]]\nmodel = 'x'\n[[models]]\nport = 1", "number 2: port is no option of a single model"),
        ("[[models]]\nblok-size = 1", "number 1: blok-size is no option of a single model"),
        ("[[models]]\nrouters = 2", "routers is no option of a single model"),
        ("[[models]]\nlog-level = 'debug'", "log-level is no option of a single model"),
        ("[[models]]\nhost-memory-bytes = 1", "host-memory-bytes is no option of a single model"),
        ("[[models]]\nworker = 'x:1'", "worker in the configuration file is for parts started one by one"),
        ("[[models]]\nworkers = 0", "number 1: workers in the configuration file is 0: use at least 1"),
        ("[[models]]\nblock-size = 'x'", "number 1: block-size in the configuration file is 'x': use a whole number"),
        (
            "model = 'x'\n[[models]]\nmodel = 'y'",
            "model in the configuration file names a model, and the configuration",
        ),
        ("blok-size = 1\n[[models]]\nmodel = 'y'", "^blok-size in the configuration file is not an option"),
    ],
)
def test_a_bad_table_is_told(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse("--config", write(tmp_path, text))


@pytest.mark.parametrize(
    ("models", "complaint"),
    [
        (({"model": CHAT}, {"model": CHAT}), "served as 'quire-chat': give each a served-model-name of its own"),
        (({"model": CHAT}, {"model": DRAFT, "served-model-name": "quire-chat"}), "served as 'quire-chat'"),
        (({"model": ""}, {"model": CHAT}), "served as 'quire-chat'"),
        (({"model": CHAT}, {"model": DRAFT, "served-model-name": ["x", "quire-chat"]}), "served as 'quire-chat'"),
        (
            (
                {"model": CHAT, "served-model-name": "x", "model-version": "1"},
                {"model": DRAFT, "served-model-name": "x", "model-version": "1"},
            ),
            "served as 'x'",
        ),
        (({"model": CHAT}, {"model": "/none"}), "there is no directory /none"),
        (({"model": CHAT, "preemption-mode": "swap", "swap-space": 0}, {"model": DRAFT}), "^quire-chat: --preemption-"),
    ],
)
def test_models_that_cannot_be_told_apart_are_refused(models: tuple[dict[str, Any], ...], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        tables(*models)


def test_versions_of_one_model_share_their_name() -> None:
    named = {"served-model-name": ["x", "y"]}
    stack = tables(
        {"model": CHAT, **named, "model-version": "v1"}, {"model": DRAFT, **named, "model-version": "v2"},
        {"model": CHAT, **named},
    )  # fmt: skip
    assert stack.models == ("x@v1", "x@v2", "x")
    assert stack.names("worker") == ("worker-0 of x@v1", "worker-1 of x@v2", "worker-2 of x")


def test_the_default_model_must_be_one_of_them() -> None:
    assert values(specs(parse(CHAT, DRAFT, "--default-model", "quire-chat-draft"))["router"], "--default-model")
    assert not values(specs(parse(CHAT, DRAFT))["router"], "--default-model"), "the first is not the default"
    with pytest.raises(ConfigError, match="--default-model is 'z', which is none of the models: quire-chat, quire-"):
        parse(CHAT, DRAFT, "--default-model", "z")


@pytest.mark.usefixtures("memory")
def test_the_memory_that_weights_leave_is_divided_among_kv_caches_of_the_default_size() -> None:
    stack = tables({"model": CHAT}, {"model": DRAFT, "workers": 2}, {"model": CHAT, "served-model-name": "c",
                   "kv-cache-memory-bytes": GIB // 4})  # fmt: skip
    chat, draft, fixed = (group.config.host_memory_bytes for group in stack.of_kind("worker"))
    weights = fixed - GIB // 4
    assert 4_000_000 < weights < 8_000_000
    rest = chat - weights
    assert rest == pytest.approx((GIB - GIB // 4) / 3, rel=0.02)
    assert rest < draft < chat, "the draft's weights are smaller"
    assert chat + 2 * draft + fixed == pytest.approx(GIB, abs=3)


@pytest.mark.parametrize(
    ("models", "complaint"),
    [
        (
            ({"kv-cache-memory-bytes": GIB // 2}, {"kv-cache-memory-bytes": GIB // 2}),
            r"the model b does not fit: it takes 0\.5 GiB \(weights .* MiB, --kv-cache-memory-bytes 0\.5 GiB\), but "
            r"this host has 1\.0 GiB of memory available, of which a leaves 0\.5 GiB",
        ),
        (({"swap-space": 0.5, "workers": 3}, {}), r"the model a does not fit: .* for each of its 3 workers"),
        (
            ({}, {"num-gpu-blocks-override": 100_000}),
            r"the model b does not fit: .*--num-gpu-blocks-override \d+\.\d GiB",
        ),
    ],
)
@pytest.mark.usefixtures("memory")
def test_the_model_that_does_not_fit_beside_the_others_is_named(
    models: tuple[dict[str, Any], ...], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        tables(*({"model": CHAT, "served-model-name": name, **model} for name, model in zip("ab", models, strict=True)))


def test_a_model_that_quire_does_not_run_is_told_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["NoneSuch"], "model_type": "nonesuch"}')
    with pytest.raises(ConfigError, match=f"^{tmp_path}: "):
        parse(CHAT, str(tmp_path))


def test_each_worker_gets_a_gpu_but_those_of_models_on_the_cpu(gpus: list[str]) -> None:
    gpus += ["0", "1", "2"]
    stack = tables({"model": CHAT, "workers": 2}, {"model": DRAFT, "device": "cpu"}, {"served-model-name": "x"})
    assert [dict(spec.environment) for name, spec in specs(stack).items() if "worker-" in name] == [
        {"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}, {}, {"CUDA_VISIBLE_DEVICES": "2"},
    ]  # fmt: skip
    shares = [group.config.host_memory_bytes for group in stack.of_kind("worker")]
    assert [share is None for share in shares] == [True, False, True]
    with pytest.raises(ConfigError, match=r'4 workers need 4 GPUs, but this host has 3; .*with device = "cpu"'):
        tables({"model": CHAT, "workers": 3}, {"model": DRAFT})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that the server lists. Their tasks follow from their names."""
    listed: list[str] = []

    async def ask(address: str, path: str, **_: Any) -> Answer:
        tasks = {"chat": ["generate", "embed"], "base": ["generate"], "vectors": ["embed"], "classes": ["classify"]}
        if path.startswith("/tokenizer_info?model="):
            return Answer(200, json.dumps({"chat_template": None if path.endswith("=base") else "{{ messages }}"}))
        cards = [{"id": name, "tasks": tasks[re.split("[@-]", name)[0]]} for name in listed]
        return Answer(200, json.dumps({"data": cards}) if path == "/v1/models" else "")

    monkeypatch.setattr(serve, "ask", ask)
    return listed


async def test_the_start_is_over_once_all_models_are_listed(server: list[str]) -> None:
    stack = dataclasses.replace(build_stack({}, {}), models=("chat@v1", "vectors"))
    server += ["chat", "chat@v1"]
    assert await serve._problem("http://here", stack) == "these models are not served yet: vectors"
    server.append("vectors")
    assert await serve._problem("http://here", stack) is None
    server.clear()
    assert await serve._problem("http://here", build_stack({}, {})) is None, "of a single model its health says enough"


async def test_the_message_at_the_end_of_the_start_has_a_request_for_each_model(
    server: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    server += ["chat", "classes", "vectors", "vectors-alias"]
    await serve._welcome("http://here", dataclasses.replace(build_stack({}, {}), models=("vectors", "chat", "classes")))
    printed = capsys.readouterr().out
    assert "3 models are served: vectors, chat, classes.\n" in printed
    requests = re.findall(r"curl -N http://here(\S+) .*\"model\": \"(\w+)\"", printed)
    assert requests == [("/v1/embeddings", "vectors"), ("/v1/chat/completions", "chat"), ("/classify", "classes")]
    assert "quire chat --url http://here --model chat\n" in printed


async def test_the_message_waits_for_a_router_that_does_not_know_all_models_yet(
    server: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = dataclasses.replace(build_stack({}, {}), models=("chat", "vectors"))
    server.append("chat")
    welcome = asyncio.create_task(serve._welcome("http://here", stack))
    await asyncio.sleep(2 * serve.LIST_PAUSE_S)
    assert capsys.readouterr().out == ""
    server.append("vectors")
    await welcome
    assert capsys.readouterr().out.count("curl") == 2
    server.remove("chat")
    monkeypatch.setattr(serve, "LIST_TRIES", 1)
    await serve._welcome("http://here", stack)
    assert capsys.readouterr().out.count("curl") == 1, "a scheduler that is away stops nothing"


async def test_a_model_without_a_chat_template_is_asked_to_complete_a_text(
    server: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    server += ["base"]
    await serve._welcome("http://here", build_stack({"api_key": ["secret"]}, {}))
    printed = capsys.readouterr().out
    assert "/v1/completions" in printed
    assert '"model": "base", "prompt": "Once upon a time"' in printed
    assert "quire chat" not in printed
    assert "to the key for this command.\n" in printed


async def test_the_message_of_one_model_names_it_alone(server: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    server += ["chat", "chat-alias"]
    await serve._welcome("http://here", build_stack({"api_key": ["secret"]}, {}))
    assert capsys.readouterr().out == (
        "\nchat is served.\n"
        "  OpenAI's API   http://here/v1\n"
        "  gRPC           here\n"
        "  metrics        http://here/metrics\n\n"
        "Try:  curl -N http://here/v1/chat/completions -H 'content-type: application/json' "
        '-H "authorization: Bearer $QUIRE_API_KEY" '
        """-d '{"model": "chat", "messages": [{"role": "user", "content": "Hello!"}], "stream": true}'\n"""
        "      quire chat --url http://here\n"
        "      Set QUIRE_API_KEY to the key for both commands.\n\n"
        "Ctrl-C stops it.\n"
    )
