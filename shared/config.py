"""Configuration: one frozen dataclass per service, resolved once from flags, environment and file.

A service declares its options as dataclass fields through `option()`. `resolve()` turns them into flags
(`--block-size`), environment variables (`QUIRE_BLOCK_SIZE`) and keys of a TOML file (`block-size`), in that order of
precedence. A bad value stops the start with an error that names the option. The configuration does not change after
the start.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import os
import re
import tomllib
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from shared.option_parser import TRUTH, OptionParser, StoreItems, StoreOnce

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

# Minimum difflib ratio between an unknown variable's name and the name that the warning suggests for it.
_LIKENESS = 0.8
# Suffixes of the environment variables that Kubernetes sets for each of its services. If a service is named quire, its
# variables look like Quire's own: QUIRE_SERVICE_HOST, QUIRE_PORT_80_TCP.
_OF_A_SERVICE = re.compile(r"_SERVICE_(HOST|PORT)(_[A-Z0-9_]+)?$|_PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$")

ENVIRONMENT_PREFIX = "QUIRE_"


class ConfigError(ValueError):
    """A bad option value. The message names the option and is shown to the user."""


def option(
    default: Any,
    help: str,  # noqa: A002 - argparse's word for it
    *,
    choices: Sequence[str] | None = None,
    aliases: Mapping[str, str] = types.MappingProxyType({}),
    refusals: Mapping[str, str] = types.MappingProxyType({}),
    short: str | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    positional: bool = False,
    secret: bool = False,
    not_built: bool = False,
) -> Any:
    """Declares an option as a dataclass field. `help` includes the unit. `aliases`: other names of choices. `refusals`:
    known values that are not supported, and what to do instead. `short`: short form of the flag, such as -t.
    `positional`: the value can also be given without the flag. `not_built`: the option is parsed, but any value other
    than the default stops the start. `secret`: the value is never printed and never passed on a command line, so users
    must set it through the environment."""
    metadata = {
        "help": help,
        "choices": choices,
        "aliases": aliases,
        "refusals": refusals,
        "short": short,
        "minimum": minimum,
        "maximum": maximum,
        "positional": positional,
        "secret": secret,
        "not_built": not_built,
    }
    return dataclasses.field(default=default, metadata=metadata)


def flag(field: dataclasses.Field[Any]) -> str:
    return "--" + field.name.replace("_", "-")


def add_options(parser: argparse._ActionsContainer, config_class: type) -> None:
    """Adds one flag per option of `config_class` to a parser or an argument group. Skips options that the parser has
    already. On the command line, a flag that takes several values can also be repeated."""
    hints = typing.get_type_hints(config_class)
    taken = {action.dest for action in parser._actions}
    for field in dataclasses.fields(config_class):
        if field.name in taken:
            continue
        kind, is_tuple = _kind(hints[field.name])
        arguments: dict[str, Any] = {
            "help": _help(field),
            "default": argparse.SUPPRESS,
            "dest": field.name,
        }
        flags = [form for form in (field.metadata["short"], flag(field)) if form]
        if field.metadata["positional"]:
            metavar = field.name.upper()
            as_flag = arguments | {"help": f"The same as {metavar} without a flag."}
            del arguments["dest"]
            parser.add_argument(field.name, nargs="?", action=StoreOnce, metavar=metavar, **arguments)
            parser.add_argument(*flags, action=StoreOnce, metavar=metavar, **as_flag)
        elif kind is bool:
            parser.add_argument(*flags, action=argparse.BooleanOptionalAction, **arguments)
        elif is_tuple:
            arguments["is_secret"] = field.metadata["secret"]
            parser.add_argument(*flags, action=StoreItems, metavar=field.name.upper(), **arguments)
        else:
            parser.add_argument(*flags, metavar=kind.__name__.upper(), **arguments)


def build(
    config_class: type[T],
    flags: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
    file: Mapping[str, Any] | None = None,
) -> T:
    """Builds the config object. The keys of `flags` are field names; the keys of `file` are option names, as in TOML.
    Raises ConfigError for a bad value. One ConfigError lists all options that are not implemented."""
    environment = os.environ if environment is None else environment
    hints = typing.get_type_hints(config_class)
    values: dict[str, Any] = {}
    not_built: list[str] = []
    for field in dataclasses.fields(config_class):
        found = find(field.name, flags, environment, file or {})
        if found is None:
            continue
        source, raw = found
        value = _parse(source, raw, hints[field.name])
        value = field.metadata["aliases"].get(value, value) if isinstance(value, str) else value
        _check(source, value, field)
        if field.metadata["not_built"] and value != field.default:
            not_built.append(source)
        values[field.name] = value
    if not_built:
        raise ConfigError(not_built_yet(not_built))
    return config_class(**values)


def find(
    name: str, flags: Mapping[str, Any], environment: Mapping[str, str], file: Mapping[str, Any]
) -> tuple[str, Any] | None:
    """Finds the value of the option with field name `name`. Returns its source, as error messages name it, and the
    value; None if the option is not set."""
    variable, key = ENVIRONMENT_PREFIX + name.upper(), name.replace("_", "-")
    if name in flags:
        return f"--{key}", flags[name]
    if variable in environment:
        return variable, environment[variable]
    return (f"{key} in the configuration file", file[key]) if key in file else None


def not_built_yet(sources: Sequence[str]) -> str:
    """Returns the error message for options that are parsed but not implemented."""
    if len(sources) == 1:
        return f"{sources[0]} is not implemented yet; leave it out"
    return f"{', '.join(sources[:-1])} and {sources[-1]} are not implemented yet; leave them out"


def resolve(
    config_class: type[T],
    argv: Sequence[str],
    *,
    prog: str,
    description: str,
    expand: Callable[[Mapping[str, Any], Mapping[str, str], Mapping[str, Any]], Mapping[str, Any]] | None = None,
) -> T:
    """Builds a config object from `argv`, the environment and the file that --config names. If that fails, prints the
    error and exits: with status 2 for a bad flag, 1 for a bad value. `expand`: takes flags, environment and file as
    `build` does, and returns the file's options with more added, such as those of a preset."""
    parser = OptionParser(prog=prog, description=description)
    parser.add_argument(
        "--config", metavar="FILE", help="TOML file with options; keys are the names of the flags", default=None
    )
    add_options(parser, config_class)
    arguments = vars(parser.parse_args(argv))
    try:
        file = read_file(arguments.pop("config"))
        known = {flag(field)[2:] for field in dataclasses.fields(config_class)}
        if unknown := sorted(file.keys() - known):
            raise ConfigError(f"{unknown[0]} in the configuration file is not an option of {prog}")
        expanded = file if expand is None else expand(arguments, os.environ, file)
        return build(config_class, arguments, file=expanded)
    except ConfigError as error:
        stop(prog, str(error))


def read_file(path: str | None, objects: Collection[str] = ()) -> dict[str, Any]:
    """Reads options from a TOML file. Returns them by flag name without the leading dashes; underscores in keys become
    dashes. `objects`: options whose value can be a table. Raises ConfigError."""
    if path is None:
        return {}
    try:
        found = tomllib.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"--config {path}: {error}") from error
    for key, value in found.items():
        if isinstance(value, dict) and key.replace("_", "-") not in objects:
            raise ConfigError(f"{path} has a table, [{key}]: write options at the top level, such as block-size = 16")
    return plain_keys(found, path)


def plain_keys(table: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Returns a table of the file `path` with dashes in place of the underscores in its keys. Raises ConfigError if two
    keys are then the same."""
    options: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("_", "-")
        if name in options:
            raise ConfigError(f"{path} gives {name} twice, once with dashes and once with underscores")
        options[name] = value
    return options


def unknown_variables(environment: Mapping[str, str], known: Iterable[str], prog: str) -> dict[str, str]:
    """Returns a warning for each QUIRE_ variable that sets none of the `known` options (field names). `prog`: the
    command that ignores the variable. Variables that Kubernetes sets for services give no warning."""
    names = {ENVIRONMENT_PREFIX + name.upper().replace("-", "_") for name in known}
    sentences = {}
    for variable in sorted(environment.keys() - names):
        if variable.startswith(ENVIRONMENT_PREFIX) and not _OF_A_SERVICE.search(variable):
            (like,) = difflib.get_close_matches(variable, names, 1, _LIKENESS) or (None,)
            hint = f"; did you mean {like}?" if like else ""
            sentences[variable] = f"{variable} is not an option of {prog}, so it is ignored{hint}"
    return sentences


def to_argv(config: Any) -> list[str]:
    """Returns the flags from which another process can build an equal config object, except for its secrets. Leaves
    out options that have their default value. Joins each flag to its value with `=`, so that a value can begin with a
    dash."""
    argv: list[str] = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if value == field.default or field.metadata["secret"]:
            continue
        if isinstance(value, bool):
            argv.append(flag(field) if value else flag(field).replace("--", "--no-", 1))
        elif isinstance(value, tuple):
            # An empty tuple is written as `--flag=`, which parses to an empty tuple again.
            argv += [f"{flag(field)}={_item(item)}" for item in value or ("",)]
        else:
            argv.append(f"{flag(field)}={value}")
    return argv


def _item(item: object) -> str:
    """Formats an item of a tuple so that `_parse` reads it back unchanged. An item that looks like a JSON list, or is
    `--` (which argparse drops), is put into a JSON list."""
    return str(item) if _json_list(item) is None and item != "--" else json.dumps([item])


def stop(prog: str, message: str) -> NoReturn:
    raise SystemExit(f"{prog}: {message}")


def _kind(hint: Any) -> tuple[type, bool]:
    """Returns the scalar type of a hint such as `int | None` or `tuple[str, ...]`, and whether the hint is a tuple."""
    if isinstance(hint, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    if typing.get_origin(hint) is tuple:
        return typing.get_args(hint)[0], True
    return hint, False


def _help(field: dataclasses.Field[Any]) -> str:
    text = str(field.metadata["help"])
    if field.metadata["choices"]:
        text += f" One of {', '.join(field.metadata['choices'])}."
    if field.metadata["not_built"]:
        text += " Not implemented: only the default is accepted."
    if field.default not in (None, "", ()) and not field.metadata["secret"]:
        text += f" Default: {field.default}."
    return text.replace("%", "%%")


def _parse(source: str, raw: Any, hint: Any) -> Any:
    kind, is_tuple = _kind(hint)
    if isinstance(hint, types.UnionType) and str(raw) in (("None",) if kind is str else ("None", "auto", "-1")):
        return None
    if is_tuple:
        items = _items(raw) if isinstance(raw, str) else raw if isinstance(raw, Sequence) else (str(raw),)
        lists = ((item,) if (listed := _json_list(item)) is None else listed for item in items)
        return tuple(kind(item) for listed in lists for item in listed if item != "")
    if kind is bool:
        return parse_switch(source, raw)
    if kind is int and (size := re.fullmatch(r"([0-9]+)(\.[0-9]+)?([kKmMgG])", str(raw))):
        return _size(source, *size.groups())
    try:
        return kind(str(raw))  # str(), because int() would accept 4.5 and True from TOML as whole numbers
    except ValueError:
        wanted = {"int": "a whole number", "float": "a number"}.get(kind.__name__, kind.__name__)
        raise ConfigError(f"{source} is {raw!r}: use {wanted}") from None


def parse_switch(source: str, raw: Any) -> bool:
    """Parses a boolean. Raises ConfigError."""
    if str(raw).lower() not in TRUTH:
        raise ConfigError(f"{source} is {raw!r}: use true or false")
    return TRUTH[str(raw).lower()]


def _size(source: str, whole: str, decimals: str | None, unit: str) -> int:
    """Parses a number with a suffix as vLLM does: 4k is 4,000, 4K is 4,096, 25.6k is 25,600."""
    power = "kmg".index(unit.lower()) + 1
    base: int = (1000 if unit.islower() else 1024) ** power
    if unit.islower():
        return round(float(whole + (decimals or "")) * base)
    if decimals:
        raise ConfigError(f"{source} is {whole}{decimals}{unit}: use {unit.lower()} with decimals, or a whole number")
    return int(whole) * base


def _items(raw: str) -> Sequence[str]:
    return raw.split(",") if _json_list(raw) is None else (raw,)


def _json_list(text: Any) -> list[str] | None:
    """Returns the strings of a JSON list, a form that some of vLLM's flags take. Returns None for any other text, such
    as `[::1]:80`."""
    try:
        items = json.loads(text) if str(text).startswith("[") else None
    except ValueError:
        return None
    return items if isinstance(items, list) and all(isinstance(item, str) for item in items) else None


def _check(source: str, value: Any, field: dataclasses.Field[Any]) -> None:
    metadata = field.metadata
    if value is None:
        return
    if isinstance(value, str) and value in metadata["refusals"]:
        raise ConfigError(f"{source} is {value!r}, which is not supported: {metadata['refusals'][value]}")
    if metadata["choices"] and value not in metadata["choices"]:
        raise ConfigError(f"{source} is {value!r}: use one of {', '.join(metadata['choices'])}")
    if metadata["minimum"] is not None and value < metadata["minimum"]:
        raise ConfigError(f"{source} is {value}: use at least {metadata['minimum']}")
    if metadata["maximum"] is not None and value > metadata["maximum"]:
        raise ConfigError(f"{source} is {value}: use at most {metadata['maximum']}")
