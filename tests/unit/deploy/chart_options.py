"""What the chart's schema must say of the options of each part. `python -m tests.unit.deploy.chart_options` writes it
into values.schema.json."""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from typing import Any

from quire.cli.stack import SERVICES
from tests.unit.deploy.kubernetes import MANIFESTS

SCHEMA = MANIFESTS / "values.schema.json"
# The manifests set the address at which each part listens, and the one that it tells other parts. `status-fd` is for a
# parent process, which a container does not have.
_FIXED = {"host", "port", "listen", "advertise", "metrics-host", "metrics-port", "admin-port", "status-fd"}


def definition(part: str) -> dict[str, Any]:
    """The names of the options, and the values that some of them may have. Secret options are left out:
    they belong in Kubernetes' Secrets, not into the values of a chart."""
    names, values = [], {}
    hints = typing.get_type_hints(SERVICES[part])
    for field in dataclasses.fields(SERVICES[part]):
        name, said = field.name.replace("_", "-"), field.metadata
        if name in _FIXED or said["secret"]:
            continue
        names.append(name)
        is_optional = isinstance(hints[field.name], types.UnionType)
        allowed: dict[str, Any] = {key: said[key] for key in ("minimum", "maximum") if said[key] is not None}
        # As shared.config reads them: words for "not set".
        if said["choices"]:
            allowed = {"enum": [*said["choices"], *sorted(said["aliases"]), *(["None"] if is_optional else [])]}
        elif allowed and is_optional:
            allowed = {"anyOf": [{"const": -1}, allowed]}
        if allowed:
            values[name] = allowed
    return {
        "allOf": [{"$ref": "#/definitions/options"}],
        "propertyNames": {"enum": sorted(names)},
        "properties": dict(sorted(values.items())),
    }


def _written(part: str) -> str:
    found = definition(part)
    lines = [f'    "{part}Options": {{', '      "allOf": [{"$ref": "#/definitions/options"}],']
    lines += ['      "propertyNames": {', '        "enum": [']
    line = " " * 9
    names = found["propertyNames"]["enum"]
    for name in names:
        word = f' "{name}"' + ("" if name == names[-1] else ",")
        if len(line) + len(word) > 110:
            lines.append(line)
            line = " " * 9
        line += word
    lines += [line, "        ]", "      },", '      "properties": {']
    lines += [",\n".join(f'        "{name}": {json.dumps(one)}' for name, one in found["properties"].items())]
    return "\n".join([*lines, "      }", "    }"])


def main() -> None:
    text = SCHEMA.read_text()
    for part in SERVICES:
        block = re.compile(rf'^    "{part}Options": \{{$.*?^    \}}', re.DOTALL | re.MULTILINE)
        (old,) = block.findall(text)
        text = text.replace(old, _written(part))
    SCHEMA.write_text(text)


if __name__ == "__main__":
    main()
