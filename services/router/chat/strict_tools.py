"""Schemas of strict tools that the model may decide to call (tool choice `auto`): the calls must match them."""

from __future__ import annotations

import asyncio
import contextlib
import json

from services.router.chat.argument_schema import Definitions
from services.router.chat.call_grammar import own_grammar
from services.router.chat.parsers import Schemas, ToolForm
from services.router.chat.request import ChatRequest
from services.router.chat.tool_faults import names_tool
from services.router.chat.tool_grammar import strict_of
from services.router.constraints import INVALID_STRUCTURE, grammar_checks
from services.router.errors import ApiError, invalid
from services.router.grammar import Structure, StructureKind
from services.router.text import TextThreads
from shared.grammar import GrammarError

# Time limit of the search for the tool whose schema cannot be enforced.
_MAX_SECONDS = 5.0


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
        await _check_form(form, schemas, request, threads)
    return schemas


async def _check_form(form: ToolForm, schemas: Schemas, request: ChatRequest, threads: TextThreads) -> None:
    """Raises ApiError, which names the tool, if the grammar of this form cannot enforce a schema."""
    path = request.tool_path
    try:
        await _check_some(form, schemas, path.all, threads)
    except ApiError as error:
        if error.code != INVALID_STRUCTURE:
            raise
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_MAX_SECONDS):
                for index, tool in enumerate(request.tools):
                    if tool.name in schemas:
                        await _check_some(form, {tool.name: schemas[tool.name]}, path.schema(index), threads)
        raise


async def _check_some(form: ToolForm, schemas: Schemas, param: str, threads: TextThreads) -> None:
    """Raises ApiError that names `param`. The checking process compiles the grammar, because compiling a hostile one
    takes long."""
    try:
        grammar = await threads.run_beside(lambda: own_grammar(form, schemas))
        if grammar is not None:
            await grammar_checks().check(Structure(StructureKind.GRAMMAR_OF_CALLS, grammar, param))
    except GrammarError as error:
        reason = f"Invalid '{param}': {error}"
    except ApiError as error:
        if error.code != INVALID_STRUCTURE:
            raise
        reason = error.message.removesuffix(".")
    else:
        return
    hint = "Leave out 'strict', or require a call: a required call matches its schema with every model."
    raise invalid(f"{reason}. {hint}", param, INVALID_STRUCTURE)


def _by_tool(names: list[str], grammar: str) -> Schemas:
    """Returns the schema of each tool's arguments, with the definitions that it needs. `grammar`: the checked grammar
    of all tools."""
    definitions = Definitions(json.loads(grammar)["grammars"][0]["json_schema"]["$defs"])
    references = {name: {"$ref": f"#/$defs/{name}"} for name in names}
    return {name: {**reference, "$defs": definitions.of(reference)} for name, reference in references.items()}
