"""Which flags `quire serve` takes, and the commands that it starts the parts with."""

from __future__ import annotations

import os
import re
import stat
import tempfile
import tomllib
from pathlib import Path

import pytest

from quire.cli import serve
from quire.cli.stack import part_environment, part_specs, stack_directory, unknown_options
from quire.cli.stack_options import build_stack, read_options
from shared.config import ConfigError

# Section 7 of the design: all of vLLM's names that mean the same.
FLAGS = """
--host --port --api-key --served-model-name --max-model-len --dtype --device --load-format --gpu-memory-utilization
--kv-cache-memory-bytes --num-gpu-blocks-override --block-size --swap-space --max-num-seqs --max-num-batched-tokens
--enable-prefix-caching --enable-chunked-prefill --scheduling-policy --preemption-mode --enforce-eager --quantization
--kv-cache-dtype --tensor-parallel-size --pipeline-parallel-size --speculative-model --num-speculative-tokens
--speculative-draft-tensor-parallel-size --num-scheduler-steps --enable-lora --lora-modules --max-loras --max-lora-rank
"""

EXAMPLE = Path(__file__).parents[3] / "examples" / "quire.toml"


def commands(flags: dict[str, object], directory: Path = Path("/run/q")) -> dict[str, list[str]]:
    return {spec.name: list(spec.argv[5:]) for spec in part_specs(build_stack(flags, {}), directory)}


@pytest.mark.parametrize("flag", FLAGS.split())
def test_every_flag_of_the_design_parses(flag: str) -> None:
    assert flag in {name for action in serve._parser()._actions for name in action.option_strings}


def test_parts_meet_at_sockets_in_one_directory() -> None:
    assert commands({}) == {
        "gateway": ["--router", "unix:/run/q/router.sock"],
        "router": ["--listen", "unix:/run/q/router.sock", "--scheduler", "unix:/run/q/scheduler.sock"],
        "scheduler": ["--listen", "unix:/run/q/scheduler.sock", "--worker", "unix:/run/q/worker.sock"],
        "worker": ["--listen", "unix:/run/q/worker.sock"],
    }


def test_a_private_stack_takes_no_port() -> None:
    specs = {spec.name: spec.argv[5:] for spec in part_specs(build_stack({}, {}), Path("/run/q"), private=True)}

    assert specs["gateway"] == ("--listen", "unix:/run/q/gateway.sock", "--router", "unix:/run/q/router.sock")


def test_a_flag_goes_to_every_part_that_has_it_and_to_no_other() -> None:
    given = commands({"model": "/models/m", "max_num_seqs": "8", "port": "9", "log_level": "debug"})

    assert given["worker"][:3] == ["--model=/models/m", "--max-num-seqs=8", "--log-level=debug"]
    assert "--max-num-seqs=8" in given["scheduler"]
    assert "--max-num-seqs=8" not in given["router"] + given["gateway"]
    assert "--port=9" in given["gateway"]
    assert all("--log-level=debug" in words for words in given.values())


def test_a_root_path_goes_to_the_parts_that_serve_paths_and_describe_them() -> None:
    given = commands({"root_path": "/llm"})

    assert [name for name, words in given.items() if "--root-path=/llm" in words] == ["gateway", "router"]


def test_each_part_gets_a_metrics_port_of_its_own() -> None:
    given = commands({"metrics_port": "9100"})

    for name, port in {"gateway": 9100, "router": 9101, "scheduler": 9102, "worker": 9103}.items():
        assert f"--metrics-port={port}" in given[name]


def test_a_secret_goes_through_the_environment_and_not_the_command_line() -> None:
    stack = build_stack({"api_key": ["one", "two"]}, {})

    assert all("one" not in " ".join(spec.argv) for spec in part_specs(stack, Path("/run/q")))
    assert part_environment(stack, Path("/run/q"))["QUIRE_API_KEY"] == "one,two"


def test_with_a_key_pages_of_every_origin_may_ask_unless_it_is_said_which() -> None:
    assert "--allowed-origins=*" in commands({"api_key": ["one"]})["gateway"]
    assert "--allowed-origins=localhost" in commands({"api_key": ["one"], "allowed_origins": ["localhost"]})["gateway"]
    assert "--allowed-origins=" in commands({"api_key": ["one"], "allowed_origins": [""]})["gateway"]


def test_with_a_key_requests_may_name_every_host_unless_it_is_said_which() -> None:
    assert "--allowed-hosts=*" in commands({"api_key": ["one"]})["gateway"]
    assert (
        "--allowed-hosts=chat.example" in commands({"api_key": ["one"], "allowed_hosts": ["chat.example"]})["gateway"]
    )
    assert not any("allowed-hosts" in word for word in commands({})["gateway"])


def test_an_option_from_the_environment_is_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag that sets the default again must win over the variable, in the parts too."""
    monkeypatch.setenv("QUIRE_BLOCK_SIZE", "32")
    monkeypatch.setenv("QUIRE_PORT", "9")
    monkeypatch.setenv("QUIRE_SOMETHING_ELSE", "kept")
    stack = build_stack({"port": "8000"}, {})

    given = {spec.name: list(spec.argv) for spec in part_specs(stack, Path("/run/q"))}
    environment = part_environment(stack, Path("/run/q"))

    assert "--block-size=32" in given["worker"]
    assert not any(word.startswith("--port") for word in given["gateway"])
    assert not {"QUIRE_PORT", "QUIRE_BLOCK_SIZE"} & environment.keys()
    assert environment["QUIRE_SOMETHING_ELSE"] == "kept"


@pytest.mark.parametrize(
    ("flags", "file", "complaint"),
    [
        ({"worker": ["x:1"]}, {}, "--worker is for parts started one by one"),
        ({}, {"blok-size": 3}, "blok-size in the configuration file is not an option"),
        ({}, {"worker": "x:1"}, "worker in the configuration file is for parts started one by one"),
        ({"block_size": "x"}, {}, "--block-size is 'x': use a whole number"),
        ({"api_key": ["good", "two words"]}, {}, "^--api-key takes visible ASCII characters other than commas$"),
        ({"api_key": ["one,two"]}, {}, "^--api-key takes visible ASCII characters other than commas$"),
        ({"tensor_parallel_size": "2"}, {}, "--tensor-parallel-size is not implemented yet"),
        ({"quantization": "int3"}, {}, "--quantization is .int3.: use one of fp8, int8"),
        ({}, {"max-loras": 4}, "max-loras in the configuration file is not implemented yet"),
    ],
)
def test_bad_options_are_told(flags: dict[str, object], file: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        build_stack(flags, file)


def test_the_runtime_directory_is_private_and_short_enough_for_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))

    with stack_directory() as directory:
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert len(f"{directory}/quire-gateway-xxxxxxxx/admin.sock") <= 107
    assert not directory.exists()


@pytest.mark.parametrize("name", ["/dev/null", "not-there", "relative"])
def test_a_directory_that_cannot_hold_sockets_is_passed_over(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as short:
        monkeypatch.chdir(short)
        (Path(short) / "relative").mkdir()
        monkeypatch.setenv("XDG_RUNTIME_DIR", name)
        with stack_directory() as directory:
            assert directory.is_absolute()
            assert (directory.parent.name == "relative") == (name == "relative")
        monkeypatch.undo()


def test_a_table_is_the_value_of_an_option_of_vllms_that_is_json(tmp_path: Path) -> None:
    file = tmp_path / "quire.toml"
    file.write_text("speculative-config = {method = 'ngram'}")
    with pytest.raises(ConfigError, match="speculative"):
        build_stack({}, read_options(str(file)))
    file.write_text("seed = {a = 1}")
    with pytest.raises(ConfigError, match=r"has a table, \[seed\]"):
        read_options(str(file))


def test_the_example_of_a_configuration_file_is_one() -> None:
    """Every option that it shows, those in comments too, is taken with the value that stands there."""
    text = EXAMPLE.read_text()
    shown = re.sub(r"^# (?=[a-z-]+ = )", "", text, flags=re.MULTILINE)
    file = tomllib.loads(shown)
    assert len(file) > 10
    stack = build_stack({}, file)
    for name, value in file.items():
        field = name.replace("-", "_")
        taken = [getattr(config, field) for config in stack.configs.values() if hasattr(config, field)]
        given = tuple(value) if isinstance(value, list) else value
        assert taken, name
        assert given in taken, name
    assert build_stack({}, read_options(str(EXAMPLE))), "as it stands, too"


def test_a_misspelt_variable_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_BLOCKSIZE", "32")
    monkeypatch.setenv("QUIRE_TRUST_REMOTE_CODE", "1")
    monkeypatch.setenv("QUIRE_MAX_NUM_SEQS", "4")
    assert unknown_options("quire serve") == {
        "QUIRE_BLOCKSIZE": "QUIRE_BLOCKSIZE is not an option of quire serve, so it is ignored; did you mean "
        "QUIRE_BLOCK_SIZE?"
    }


def test_a_part_alone_knows_no_options_of_the_whole_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("QUIRE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("QUIRE_ROUTERS", "2")
    monkeypatch.setenv("QUIRE_SCHEDULING_POLICY", "fcfs")  # of another part
    (sentence,) = unknown_options("quire worker").values()
    assert sentence.startswith("QUIRE_ROUTERS is not an option of quire worker, so it is ignored")
    assert unknown_options("quire serve") == {}
