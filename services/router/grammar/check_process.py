"""Child process that compiles and tries grammars. The kernel kills it if a grammar takes too much CPU time or memory.

Reads one structure per line from standard input, as JSON {"kind", "source"}. Answers each with a line, {"grammar"} or
{"error"}. Exits at the end of its input.
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
# Limit of the address space, which includes the threads' stacks.
MAX_BYTES = 2 * 1024**3


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the router handles Ctrl-C
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
    """Limits the further CPU time of this process, in whole seconds. Sets the soft limit, because exceeding it sends
    SIGXCPU. Exceeding the hard limit sends SIGKILL, which can also come from other processes."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = math.ceil(used.ru_utime + used.ru_stime) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))


if __name__ == "__main__":
    main()
