"""The models that a stack serves: which options name them, and which options each of them has for itself.

The command line names models by position, a configuration file with `model` or with one table `[[models]]` per model.
The options of a table add to those at the file's top level. As everywhere, flags and environment take precedence.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from services.worker.config import WorkerConfig
from shared.config import ConfigError, find, plain_keys
from shared.model_label import model_label

# Key of the configuration file for the array of tables, one per model.
TABLES = "models"


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The options of one model, in the form that shared.config.build takes. `origin`: what error messages begin with to
    tell which model's options they mean."""

    flags: Mapping[str, Any]
    file: Mapping[str, Any]
    origin: str = ""


@dataclass(frozen=True, slots=True)
class ModelNames:
    """The names of a model in requests. The first is its own, the others are aliases."""

    names: tuple[str, ...]
    version: str

    @property
    def label(self) -> str:
        """The name that no other model of the stack has: NAME, or NAME@VERSION."""
        return model_label(self.names[0], self.version)


def read_tables(tables: Any, path: str) -> list[dict[str, Any]]:
    """Returns the tables `[[models]]` with the keys as flags without the leading dashes. Raises ConfigError if they are
    not an array of tables."""
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(f"{path}: write one [[{TABLES}]] with two brackets for each model, and its options below it")
    return [plain_keys(table, path) for table in tables]


def divide_options(
    flags: Mapping[str, Any], environment: Mapping[str, str], file: Mapping[str, Any], own: Collection[str]
) -> tuple[ModelOptions, ...]:
    """Returns the options of each model; of one model if no option names several. `own`: the options that a model can
    have for itself, as keys of its table. Raises ConfigError."""
    common = {key: value for key, value in file.items() if key != TABLES}
    found = find("model", flags, environment, common)
    if TABLES not in file:
        if found is None or not isinstance(found[1], list):
            return (ModelOptions(flags, common),)
        if not found[1]:
            raise ConfigError(f"{found[0]} is an empty list: leave it out for the bundled model")
        return tuple(ModelOptions({**flags, "model": name}, common) for name in found[1])
    if found is not None:
        raise ConfigError(
            f"{found[0]} names a model, and the configuration file has [[{TABLES}]]: name the models in one place"
        )
    return tuple(_of_tables(flags, common, file[TABLES], own))


def _of_tables(
    flags: Mapping[str, Any], common: Mapping[str, Any], tables: Sequence[Mapping[str, Any]], own: Collection[str]
) -> Iterator[ModelOptions]:
    for number, table in enumerate(tables, 1):
        origin = f"[[{TABLES}]] number {number}: "
        if unknown := sorted(table.keys() - own):
            raise ConfigError(
                f"{origin}{unknown[0]} is no option of a single model; options of the whole stack stand above the "
                f"first [[{TABLES}]]"
            )
        yield ModelOptions(flags, {**common, **table}, origin)


def names_of(config: WorkerConfig) -> ModelNames:
    """Returns the names that a worker with this configuration will announce. Raises ConfigError if the model is a path
    that does not exist."""
    # Imported here, because a stack with one model does without: the import takes a third of a second.
    from services.worker.checkpoint import find_local
    from services.worker.errors import ModelError

    try:
        local = find_local(config)
    except ModelError as error:
        raise ConfigError(str(error)) from error
    names = (config.served_model_name or (config.model,)) if local is None else local.names
    return ModelNames(tuple(names), config.model_version)


def check_names(models: Sequence[ModelNames]) -> None:
    """Raises ConfigError if requests could not tell two models apart. Versions of one model may share their names."""
    for one, other in combinations(models, 2):
        shared = [name for name in one.names if name in other.names]
        if not shared or (one.names[0] == other.names[0] and one.version != other.version):
            continue
        raise ConfigError(
            f"two models would be served as {shared[0]!r}: give each a served-model-name of its own, or, if they are "
            f"versions of one model, a model-version (in one [[{TABLES}]] for each, in the file of --config). For more "
            "workers of one model, use --workers"
        )


def field_keys(config_classes: Sequence[type]) -> frozenset[str]:
    """Returns the keys of these classes' options in a configuration file."""
    return frozenset(
        field.name.replace("_", "-") for config_class in config_classes for field in dataclasses.fields(config_class)
    )
