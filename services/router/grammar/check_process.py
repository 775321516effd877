"""Grammars are tried in a process like this one, which may take so much time for each and so much memory in all, and is
ended by the system when it takes more.

Reads structures from standard input, {"kind", "source"} in a line of JSON each, and answers each with a line,
{"grammar"} or {"error"}. Ends with its input.
"""

from __future__ import annotations

import json
import math
import resource
import signal
import sys

from services.router.grammar.structure import Structure, StructureKind
from services.router.grammar.trial import try_structure
from shared.grammar import GrammarError, grammar_threads

CPU_SECONDS_EACH = 2
# Of addresses, threads' stacks included.
MAX_BYTES = 2 * 1024**3


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's, for whoever reads the answers
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    thread = grammar_threads(1)
    for line in sys.stdin:
        _allow(CPU_SECONDS_EACH)
        given = json.loads(line)
        structure = Structure(StructureKind(given["kind"]), given["source"], "")
        try:
            answer = {"grammar": thread.submit(try_structure, structure).result()}
        except GrammarError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


def _allow(seconds: int) -> None:
    """From now on, in whole seconds. The limit is a soft one: the hard one's signal is what anybody kills with."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = math.ceil(used.ru_utime + used.ru_stime) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))


if __name__ == "__main__":
    main()
