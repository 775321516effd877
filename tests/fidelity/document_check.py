"""An OpenAPI document, and whether an answer is one that it promises."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import jsonschema_rs

from tests.fidelity.answer import Answer


class DocumentCheck:
    def __init__(self, document: Mapping[str, Any], prefix: str = "") -> None:
        """`prefix`: of the paths, where the document leaves it out."""
        self._document = document
        self._validators: dict[str, Any] = {}
        # A model's name may hold slashes. Paths with fewer names in them go first.
        templates = sorted(document["paths"], key=lambda template: (template.count("{"), -len(template)))
        self._paths = [
            (re.compile(prefix + re.sub(r"\\\{\w+\\\}", ".+", re.escape(template))), template) for template in templates
        ]

    def responses(self, answer: Answer) -> dict[str, Any] | None:
        """What the operation may be answered, by status; None where the document does not have it. A slash after a path
        changes nothing."""
        for pattern, template in self._paths:
            if pattern.fullmatch(answer.path.rstrip("/") or "/"):
                operation = self._document["paths"][template].get(answer.verb.lower())
                return None if operation is None else dict(operation["responses"])
        return None

    def problems(
        self, answer: Answer, schema: Mapping[str, Any], error_schema: Mapping[str, Any] | None = None
    ) -> list[str]:
        """What of its JSON does not have the schema. `error_schema`: of an event that says why a stream breaks off."""
        name = f"{answer.verb} {answer.path} {answer.status}"
        found = []
        for data in answer.json_values:
            value = json.loads(data)
            is_error = error_schema is not None and "error" in value
            validator = self._validator(error_schema if is_error else schema)
            found += [
                f"{name}: at /{'/'.join(map(str, error.instance_path))}: {error.message}"
                for error in validator.iter_errors(value)
            ]
        return found

    def _validator(self, schema: Mapping[str, Any] | None) -> Any:
        assert schema is not None
        key = json.dumps(schema, sort_keys=True)
        if key not in self._validators:
            whole = {**schema, "components": {"schemas": self._reachable(schema)}}
            self._validators[key] = jsonschema_rs.Draft202012Validator(whole)
        return self._validators[key]

    def _reachable(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """The named schemas that it refers to, however far: OpenAI's document has 1,400."""
        found: dict[str, Any] = {}
        waiting = [json.dumps(schema)]
        while waiting:
            for name in re.findall(r'"#/components/schemas/([^"/]+)', waiting.pop()):
                if name not in found:
                    found[name] = self._document["components"]["schemas"][name]
                    waiting.append(json.dumps(found[name]))
        return found
