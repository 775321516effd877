"""If the grammar of all tools together is refused, finds the tool whose parameters are the cause."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from services.router.chat.request import ChatRequest
from services.router.chat.tool_grammar import arguments_structure, calls_structure
from services.router.chat.tools import Tool
from services.router.constraints import INVALID_STRUCTURE, TOO_MUCH, grammar_checks
from services.router.errors import ApiError
from services.router.grammar import Structure
from services.router.text import TextThreads

# Time limit of the search for the faulty tool. It is short because the search delays the grammar checks of other
# requests.
_MAX_SECONDS = 5.0


async def names_tool(error: ApiError, request: ChatRequest, tools: Sequence[Tool], threads: TextThreads) -> ApiError:
    """Returns the error of the one tool whose parameters cannot be used, in place of an error about `tools`, which are
    all or some of the request's tools. Returns `error` unchanged if it is another error, if no single tool causes it,
    or if the search takes too long. The search bisects the tools, because each new structure takes time to check."""
    if error.code != INVALID_STRUCTURE or error.param != request.tool_path.all or TOO_MUCH in error.message:
        return error
    try:
        async with asyncio.timeout(_MAX_SECONDS):
            return await _of_one(request, tools, threads) or error
    except TimeoutError:
        return error


async def _of_one(request: ChatRequest, tools: Sequence[Tool], threads: TextThreads) -> ApiError | None:
    path = request.tool_path
    first, end = 0, len(tools)
    while end - first > 1:
        middle = (first + end) // 2
        # Always on a thread: it takes tens of milliseconds for large schemas.
        structure = await threads.run_beside(partial(calls_structure, tools[first:middle], parallel=True, path=path))
        fault = await _fault(structure)
        if fault is None:
            first = middle
        elif TOO_MUCH in fault.message:
            return None
        else:
            end = middle
    # Check the last tool left alone. It is not always at fault: all tools together can be too large although no single
    # tool is.
    param = path.schema(request.tools.index(tools[first]))
    return await _fault(await threads.run_beside(partial(arguments_structure, tools[first], param)))


async def _fault(structure: Structure) -> ApiError | None:
    try:
        await grammar_checks().check(structure)
    except ApiError as error:
        if error.code != INVALID_STRUCTURE:
            raise
        return error
    return None
