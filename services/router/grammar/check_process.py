"""Child process that compiles and tries grammars. It dies if a grammar takes too much CPU time or memory.

Reads structures from standard input, one per line: a JSON object with "kind" and "source". For each, writes a line to
standard output: a JSON object with "grammar" or "error". Exits at the end of its input.
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
# Limit of the process's address space (RLIMIT_AS), which includes the stacks of its threads.
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
    """Lets this process use `seconds` more of CPU time, counted from the next whole second. Sets only the soft limit,
    at which the kernel sends SIGXCPU. At a hard limit, the kernel would send SIGKILL. Other processes can also send
    SIGKILL, so the parent could not tell the reason."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = math.ceil(used.ru_utime + used.ru_stime) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))


if __name__ == "__main__":
    main()
