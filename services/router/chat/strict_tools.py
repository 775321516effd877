"""Schemas of strict tools that the model may decide to call (tool choice `auto`): the calls must match them."""

from __future__ import annotations

import json

from services.router.chat.argument_schema import Definitions
from services.router.chat.call_grammar import check_schemas
from services.router.chat.parsers import Schemas, ToolForm
from services.router.chat.request import ChatRequest
from services.router.chat.tool_faults import names_tool
from services.router.chat.tool_grammar import strict_of
from services.router.constraints import INVALID_STRUCTURE, grammar_checks
from services.router.errors import ApiError, invalid
from services.router.grammar import Structure
from services.router.text import TextThreads
from shared.grammar import GrammarError


async def strict_schemas(
    request: ChatRequest, structure: Structure, form: ToolForm | None, threads: TextThreads
) -> Schemas:
    """Returns the checked schemas of the arguments of the request's strict tools. `structure`: strict_structure's
    result for the request. `form`: the model's form of calls. Raises ApiError, which names the tool, if a schema cannot
    be enforced."""
    tools = strict_of(request.tools, request.tool_choice)
    try:
        grammar = await grammar_checks().check(structure)
    except ApiError as error:
        raise await names_tool(error, request, tools, threads) from None
    schemas = await threads.run(len(grammar), lambda: _by_tool([tool.name for tool in tools], grammar))
    if form is not None:
        await threads.run(len(grammar), lambda: _check_form(form, schemas, request))
    return schemas


def _check_form(form: ToolForm, schemas: Schemas, request: ChatRequest) -> None:
    """Raises ApiError if the form's grammar cannot enforce a schema, or if it is too large."""
    indexes = {tool.name: index for index, tool in enumerate(request.tools)}
    path = request.tool_path
    tried = [({name: schema}, path.schema(indexes[name])) for name, schema in schemas.items()]
    for some, param in (*tried, (schemas, path.all)):
        try:
            check_schemas(form, some)
        except GrammarError as error:
            message = (
                f"Invalid '{param}': {error}. Leave out 'strict', or use 'tool_choice' 'required', which enforces all "
                "schemas with every model."
            )
            raise invalid(message, param, INVALID_STRUCTURE) from None


def _by_tool(names: list[str], grammar: str) -> Schemas:
    """Returns the schema of each tool's arguments, with the definitions that it needs. `grammar`: the checked grammar
    of all tools."""
    definitions = Definitions(json.loads(grammar)["grammars"][0]["json_schema"]["$defs"])
    references = {name: {"$ref": f"#/$defs/{name}"} for name in names}
    return {name: {**reference, "$defs": definitions.of(reference)} for name, reference in references.items()}
