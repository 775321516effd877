"""Child process that compiles and tries grammars. It dies if a grammar takes too much CPU time or memory.

Reads structures from standard input, one per line: a JSON object with "kind" and "source". For each, writes a line to
standard output: a JSON object with "grammar" or "error". Exits at the end of its input.
"""

from __future__ import annotations

import json
import resource
import signal
import sys

from services.router.grammar.structure import Structure, StructureKind
from services.router.grammar.trial import byte_tokenizer, try_structure
from shared.grammar import GrammarError, grammar_threads
from shared.process_memory import address_space

CPU_SECONDS_EACH = 2.0
# Maximum size that the checks may add to the address space that the process has before the first one. That already
# includes its thread's stack of 256 MiB. The largest lawful grammars take 30 MiB, and a thousand checks leave at most
# 40 MiB behind.
MEMORY_BYTES = 128 * 2**20


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the router handles Ctrl-C
    # The timer's signal kills the process, whatever it computes.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    thread = grammar_threads(1)
    byte_tokenizer()
    memory = address_space() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS_EACH)
        given = json.loads(line)
        structure = Structure(StructureKind(given["kind"]), given["source"], "")
        try:
            answer = {"grammar": thread.submit(try_structure, structure).result()}
        except GrammarError as error:
            answer = {"error": str(error)}
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
