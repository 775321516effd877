"""A grammar is tried in this process, which may take so much time and memory and is then killed by the system.

Reads {"kind", "source"} from standard input, as JSON, and writes {"grammar"} or {"error"}.
"""

from __future__ import annotations

import json
import resource
import sys

from services.router.grammar_checks import GrammarChecks
from services.router.structure import Structure, StructureKind
from shared.grammar import GrammarError

MAX_CPU_SECONDS = 2
# Of addresses, threads' stacks included.
MAX_BYTES = 2 * 1024**3


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    given = json.load(sys.stdin)
    result = GrammarChecks().try_here(Structure(StructureKind(given["kind"]), given["source"], ""))
    json.dump({"error": str(result)} if isinstance(result, GrammarError) else {"grammar": result}, sys.stdout)


if __name__ == "__main__":
    main()
