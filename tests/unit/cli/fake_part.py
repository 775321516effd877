"""A part without a service: says that it is ready, or fails, as its words say, in order:

say TEXT        a line on standard error
failed REASON   the status `failed`, and exit status 1
exit N          exit with that status
ready           the status `ready`
child FILE      start a process that runs forever, and write its id to FILE
once FILE       go on only the first time (FILE does not exist yet); later, skip all words up to `later`
stubborn        ignore SIGTERM
log FILE        write NAME to FILE when SIGTERM comes, then exit
wait            until SIGTERM
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path


def main(name: str, words: list[str], status_fd: int) -> None:
    def report(state: str, detail: str) -> None:
        os.write(status_fd, (json.dumps({"state": state, "detail": detail}) + "\n").encode())

    log: Path | None = None

    def on_sigterm(*_: object) -> None:
        if log is not None:
            with log.open("a") as file:
                file.write(name + "\n")
        os._exit(0)

    signal.signal(signal.SIGTERM, on_sigterm)
    remaining = iter(words)
    for word in remaining:
        match word:
            case "say":
                print(next(remaining), file=sys.stderr, flush=True)
            case "failed":
                report("failed", next(remaining))
                sys.exit(1)
            case "exit":
                sys.exit(int(next(remaining)))
            case "ready":
                report("ready", "")
            case "child":
                child = subprocess.Popen([sys.executable, "-ISc", "import time; time.sleep(1000)"])
                Path(next(remaining)).write_text(str(child.pid))
            case "once":
                marker = Path(next(remaining))
                if marker.exists():
                    while next(remaining) != "later":
                        pass
                marker.touch()
            case "stubborn":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            case "log":
                log = Path(next(remaining))
            case "wait":
                while True:
                    signal.pause()


if __name__ == "__main__":
    # NAME WORDS... --status-fd N
    main(sys.argv[1], sys.argv[2:-2], int(sys.argv[-1]))
