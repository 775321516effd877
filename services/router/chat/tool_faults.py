"""Which tool is at fault where no grammar can be made of all of them."""

from __future__ import annotations

from services.router.chat.request import ChatRequest
from services.router.chat.tool_grammar import arguments_structure, calls_structure
from services.router.errors import ApiError
from services.router.grammar_checks import INVALID_STRUCTURE, grammar_checks
from services.router.structure import Structure


async def names_tool(error: ApiError, request: ChatRequest) -> ApiError:
    """The error of the one tool whose parameters cannot be used by themselves, in the place of one about all tools;
    any other error as it is. Tools are tried by halves, as every structure that is new takes its time."""
    path, tools = request.tool_path, request.tools
    if error.code != INVALID_STRUCTURE or error.param != path.all:
        return error
    first, end = 0, len(tools)
    while end - first > 1:
        middle = (first + end) // 2
        if await _fault(calls_structure(tools[first:middle], parallel=True, path=path)) is None:
            first = middle
        else:
            end = middle
    # Together they may be too much though none is.
    return await _fault(arguments_structure(tools[first], path.schema(first))) or error


async def _fault(structure: Structure) -> ApiError | None:
    try:
        await grammar_checks().check(structure)
    except ApiError as error:
        if error.code != INVALID_STRUCTURE:
            raise
        return error
    return None
