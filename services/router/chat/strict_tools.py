"""Schemas of strict tools that the model may decide to call (tool choice `auto`): the calls must match them."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import unquote

from services.router.chat.call_grammar import Schemas
from services.router.chat.request import ChatRequest
from services.router.chat.tool_faults import names_tool
from services.router.chat.tool_grammar import strict_of
from services.router.constraints import grammar_checks
from services.router.errors import ApiError
from services.router.grammar import Structure
from services.router.text import TextThreads

_REFERENCE = re.compile(r'"\$ref": "#/\$defs/((?:[^"\\]|\\.)*)"')


async def strict_schemas(request: ChatRequest, structure: Structure, threads: TextThreads) -> Schemas:
    """Returns the checked schemas of the arguments of the request's strict tools. `structure`: strict_structure's
    result for the request. Raises ApiError, which names the tool, if a schema cannot be enforced."""
    tools = strict_of(request.tools, request.tool_choice)
    try:
        grammar = await grammar_checks().check(structure)
    except ApiError as error:
        raise await names_tool(error, request, tools, threads) from None
    return await threads.run(len(grammar), lambda: _by_tool([tool.name for tool in tools], grammar))


def _by_tool(names: list[str], grammar: str) -> Schemas:
    """Returns the schema of each tool's arguments, with the definitions that it needs. `grammar`: the checked grammar
    of all tools."""
    definitions: dict[str, Any] = json.loads(grammar)["grammars"][0]["json_schema"]["$defs"]
    needs = {name: _references(schema) for name, schema in definitions.items()}
    return {name: {"$ref": f"#/$defs/{name}", "$defs": _needed(name, definitions, needs)} for name in names}


def _references(schema: Any) -> set[str]:
    """Returns the names of the definitions that a schema refers to. A reference is a JSON pointer in a URI."""
    pointers = (unquote(json.loads(f'"{match[1]}"')) for match in _REFERENCE.finditer(json.dumps(schema)))
    return {pointer.replace("~1", "/").replace("~0", "~") for pointer in pointers}


def _needed(name: str, definitions: dict[str, Any], needs: dict[str, set[str]]) -> dict[str, Any]:
    """Returns the definition `name` and all definitions that it refers to, directly or through others."""
    found: dict[str, Any] = {}
    left = [name]
    while left:
        one = left.pop()
        if one in definitions and one not in found:
            found[one] = definitions[one]
            left += sorted(needs[one])
    return found
