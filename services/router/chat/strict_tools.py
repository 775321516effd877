"""Schemas of strict tools that the model may decide to call (tool choice `auto`): the calls must match them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from typing import Any

from services.router.chat.call_grammar import Schemas
from services.router.chat.request import ChatRequest
from services.router.chat.tool_faults import names_tool
from services.router.chat.tool_grammar import strict_of
from services.router.constraints import grammar_checks
from services.router.errors import ApiError
from services.router.grammar import Structure


async def strict_schemas(request: ChatRequest, structure: Structure) -> Schemas:
    """Returns the checked schemas of the arguments of the request's strict tools. `structure`: strict_structure's
    result for the request. Raises ApiError, which names the tool, if a schema cannot be enforced."""
    tools = strict_of(request.tools, request.tool_choice)
    try:
        grammar = await grammar_checks().check(structure)
    except ApiError as error:
        raise await names_tool(error, request, tools) from None
    definitions = json.loads(grammar)["grammars"][0]["json_schema"]["$defs"]
    names = {tool.name for tool in tools}
    return {name: _schema(name, names, definitions) for name in (tool.name for tool in tools)}


def _schema(name: str, names: Set[str], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the schema of one tool's arguments, without the definitions of the other tools. A tool's name has no dot,
    and the name of a definition that belongs to a tool is the tool's name, or begins with it and a dot."""
    others = names - {name}
    own = {key: value for key, value in definitions.items() if key.partition(".")[0] not in others}
    return {"$ref": f"#/$defs/{name}", "$defs": own}
