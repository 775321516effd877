"""Options come from flags, environment and file, in that order, and a bad value stops the start with a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.config import ConfigError, build, option, read_file, resolve, to_argv, unknown_variables


@dataclass(frozen=True)
class Example:
    model: str = option("", "What to serve.", positional=True)
    block_size: int = option(16, "KV slots per block.", minimum=1, maximum=128)
    listen: tuple[str, ...] = option((), "Addresses.")
    dtype: str = option("auto", "Number format.", choices=("auto", "float32"))
    eager: bool = option(True, "Run at once.")
    memory: int | None = option(None, "Bytes.")
    api_key: str = option("", "Key.", secret=True)
    quantization: str | None = option(None, "Weights.", not_built=True)


def test_flags_win_over_the_environment_and_that_over_the_file() -> None:
    file = {"block-size": 1, "dtype": "float32", "memory": 5}
    environment = {"QUIRE_BLOCK_SIZE": "2", "QUIRE_DTYPE": "auto"}
    config = build(Example, {"block_size": "3"}, environment, file)
    assert (config.block_size, config.dtype, config.memory) == (3, "auto", 5)


def test_a_command_line_is_parsed() -> None:
    config = resolve(
        Example, ["m", "--listen", "a:1", "--listen", "b:2", "--no-eager", "--memory", "7"], prog="x", description="x"
    )
    assert config == Example(model="m", listen=("a:1", "b:2"), eager=False, memory=7)


def test_a_command_line_of_vllms_is_parsed() -> None:
    words = ["--listen", "a:1", "b:2", "--model", "m", "--block_size=4", "--eager", "false", "--memory", "4k"]
    assert resolve(Example, words, prog="x", description="x") == Example(
        "m", 4, ("a:1", "b:2"), eager=False, memory=4000
    )
    for text, number in (
        ("4K", 4096),
        ("25.6k", 25_600),
        ("1M", 2**20),
        ("2g", 2 * 10**9),
        ("auto", None),
        ("None", None),
    ):
        assert build(Example, {"memory": text}, {}).memory == number


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--blok-size 3", "x: there is no option --blok-size; did you mean --block-size?"),
        ("--zzz", "x: there is no option --zzz; see x --help"),
        ("m n", "x: 'n' is one word too many"),
        ("m --model n", "x: the model is given twice, as 'm' and as 'n'"),
        ("--listen a:1 org/model", "x: --listen takes every word up to the next flag, 'org/model' too: give the model "
         "before it, or with --model; if 'org/model' is no model, give it a --listen of its own"),
        ("--block-size.x 3", "x: there is no option --block-size.x; did you mean --block-size?"),
        ("--block-size", "x: --block-size: expected one argument"),
        ("--block", "x: there is no option --block; did you mean --block-size?"),
    ],
)  # fmt: skip
def test_a_bad_command_line_is_told_in_a_line(words: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        resolve(Example, words.split(), prog="x", description="x")
    assert (stopped.value.code, capsys.readouterr().err) == (2, f"{complaint}\n")


def test_a_model_may_follow_a_list_after_two_dashes_and_be_given_twice_alike() -> None:
    for words in ("--listen a:1 -- org/model", "org/model --model org/model --listen a:1"):
        assert resolve(Example, words.split(), prog="x", description="x") == Example("org/model", listen=("a:1",))


def test_the_flags_of_a_config_make_an_equal_one() -> None:
    config = Example("m", 8, ("a:1", "b:2"), "float32", False, 7)
    assert resolve(Example, to_argv(config), prog="x", description="x") == config


# What a process can be given as an argument.
WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(
    st.builds(
        Example,
        model=WORDS.filter("--".__ne__) | st.sampled_from(["-x", "--listen", "true", "a=b", '["a"]']),
        block_size=st.integers(1, 128),
        listen=st.lists(
            WORDS.filter(bool)
            | st.sampled_from(["-x", "--", "--model", '["a"]', '["a","b"]', "[]", "[::1]:80", "false"])
        ).map(tuple),
        dtype=st.sampled_from(["auto", "float32"]),
        eager=st.booleans(),
        memory=st.none() | st.integers(min_value=0),
    )
)
@example(Example("-x", listen=("-x", '["a"]', "--")))
def test_the_flags_of_any_config_make_an_equal_one(config: Example) -> None:
    assert resolve(Example, to_argv(config), prog="x", description="x") == config


def test_a_file_takes_the_values_that_flags_take() -> None:
    for flags, file in (({"memory": "-1"}, {}), ({}, {"memory": -1})):
        assert build(Example, flags, {}, file).memory is None
    assert build(Example, {}, {}, {"eager": 0, "listen": ["a:1"]}) == Example(eager=False, listen=("a:1",))
    assert build(Example, {}, {}, {"listen": 5}).listen == ("5",)
    for bad in (4.5, True):
        with pytest.raises(ConfigError, match=f"block-size in the configuration file is {bad}: use a whole number"):
            build(Example, {}, {}, {"block-size": bad})


@pytest.mark.parametrize("false", ["0", "no", "false", "No"])
@pytest.mark.parametrize("true", ["1", "yes", "true", "Yes"])
def test_switches_take_the_values_that_the_environment_takes(true: str, false: str) -> None:
    for words, is_eager in (
        (["--eager", true], True),
        (["--eager", false], False),
        ([f"--eager={false}"], False),
        (["--no-eager", true], False),
        (["--no-eager", false], True),
    ):
        assert resolve(Example, words, prog="x", description="x").eager is is_eager
    assert build(Example, {}, {"QUIRE_EAGER": true}).eager
    assert not build(Example, {}, {"QUIRE_EAGER": false}).eager


def test_items_may_stand_in_a_json_list_as_vllms_flags_have_them() -> None:
    for flags, environment in (({"listen": ['["a:1","b,2"]']}, {}), ({}, {"QUIRE_LISTEN": '["a:1","b,2"]'})):
        assert build(Example, flags, environment).listen == ("a:1", "b,2")
    assert build(Example, {"listen": ["[]"]}, {}).listen == ()
    # An address is none.
    assert build(Example, {}, {"QUIRE_LISTEN": "[::1]:1,[::1]:2"}).listen == ("[::1]:1", "[::1]:2")


def test_no_items_can_be_said_where_the_default_has_some() -> None:
    @dataclass(frozen=True)
    class Listening:
        listen: tuple[str, ...] = option(("a:1",), "Addresses.")

    assert resolve(Listening, to_argv(Listening(())), prog="x", description="x") == Listening(())


def test_secrets_stay_off_the_command_line() -> None:
    assert to_argv(Example(api_key="s3cret")) == []


@pytest.mark.parametrize(
    ("flags", "environment", "words"),
    [
        ({"block_size": "many"}, {}, "--block-size is 'many': use a whole number"),
        ({"block_size": "0"}, {}, "--block-size is 0: use at least 1"),
        ({"block_size": "129"}, {}, "use at most 128"),
        ({"dtype": "int3"}, {}, "use one of auto, float32"),
        ({}, {"QUIRE_EAGER": "perhaps"}, "QUIRE_EAGER is 'perhaps': use true or false"),
        ({"quantization": "fp8"}, {}, "--quantization is not implemented yet; leave it out"),
        ({"memory": "1.5K"}, {}, "--memory is 1.5K: use k with decimals, or a whole number"),
        ({"block_size": "auto"}, {}, "--block-size is 'auto': use a whole number"),
    ],
)
def test_a_bad_value_is_named(flags: dict[str, str], environment: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build(Example, flags, environment)


def test_a_bad_value_stops_the_start_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        resolve(Example, ["--block-size", "0"], prog="quire example", description="x")
    assert stopped.value.code == "quire example: --block-size is 0: use at least 1"


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("block-size = ")
    with pytest.raises(ConfigError, match=r"bad\.toml"):
        read_file(str(tmp_path / "bad.toml"))


def test_a_key_that_is_no_option_is_named(tmp_path: Path) -> None:
    (tmp_path / "quire.toml").write_text("block-sise = 8")
    with pytest.raises(SystemExit, match="block-sise in the configuration file is not an option of quire example"):
        resolve(Example, ["--config", str(tmp_path / "quire.toml")], prog="quire example", description="x")


def file_of(directory: Path, text: str) -> str:
    (directory / "quire.toml").write_text(text)
    return str(directory / "quire.toml")


def test_names_in_a_file_have_dashes_or_underscores(tmp_path: Path) -> None:
    words = ["--config", file_of(tmp_path, "block_size = 8")]
    assert resolve(Example, words, prog="quire example", description="x").block_size == 8


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[worker]\nblock-size = 8", r"quire.toml has a table, \[worker\]: write options at the top level"),
        ("dtype = {a = 1}", r"quire.toml has a table, \[dtype\]"),
        ("block-size = 8\nblock_size = 8", r"quire.toml gives block-size twice"),
    ],
)
def test_what_a_file_cannot_mean_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        read_file(file_of(tmp_path, text))


def test_a_table_may_be_an_option_s_value(tmp_path: Path) -> None:
    assert read_file(file_of(tmp_path, "[rope_scaling]\nfactor = 2"), {"rope-scaling"}) == {
        "rope-scaling": {"factor": 2}
    }


def test_variables_that_nothing_reads_are_named() -> None:
    environment = {"QUIRE_BLOK_SIZE": "8", "QUIRE_BLOCK_SIZE": "8", "QUIRE_X": "", "HOME": "/"}
    assert unknown_variables(environment, ["block_size", "dtype"], "quire x") == {
        "QUIRE_BLOK_SIZE": "QUIRE_BLOK_SIZE is not an option of quire x, so it is ignored; did you mean "
        "QUIRE_BLOCK_SIZE?",
        "QUIRE_X": "QUIRE_X is not an option of quire x, so it is ignored",
    }


def test_variables_of_kubernetes_services_are_no_options() -> None:
    """For a service called quire-router."""
    name = "QUIRE_ROUTER"
    of_a_service = [f"{name}_SERVICE_HOST", f"{name}_SERVICE_PORT", f"{name}_SERVICE_PORT_HTTP", f"{name}_PORT_80_TCP"]
    of_a_service += [f"{name}_PORT_80_TCP_{part}" for part in ("PROTO", "PORT", "ADDR")]
    assert unknown_variables(dict.fromkeys(of_a_service, ""), ["metrics_host"], "quire x") == {}
