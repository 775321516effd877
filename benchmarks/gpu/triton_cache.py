"""Packs Triton's cache into archives, and unpacks them on the next machine.

    python -m benchmarks.gpu.triton_cache unpack PATH
    python -m benchmarks.gpu.triton_cache pack FOLDER

For every kernel, the archive has the files that a launch reads: the binary and its description, without intermediate
forms. Triton writes absolute paths into its cache. `unpack` rewrites them, so the cache may have another path there.
"""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

# A machine may return several files of at most 16 MiB each.
MAX_ARCHIVE_BYTES = 15 << 20
MAX_ARCHIVES = 3
NAME = "triton-cache-{}.tar.xz"
# Intermediate forms between source and binary. Triton reads them only if they exist.
_LEFT_OUT = (".source", ".ttir", ".ttgir", ".llir", ".ptx", ".lock")
_GROUP = "__grp__"  # prefix of the files that list others by their absolute paths


def location() -> Path:
    """Returns Triton's cache directory: TRITON_CACHE_DIR, or the default in the home directory."""
    from triton import knobs

    return Path(knobs.cache.dir)


def pack(folder: Path, max_bytes: int = MAX_ARCHIVE_BYTES) -> list[Path]:
    """Writes the newest entries of Triton's cache to archives in `folder`, MAX_ARCHIVES at most. Returns their
    paths."""
    folder.mkdir(parents=True, exist_ok=True)
    archives: list[Path] = []
    entries = list(_entries(location()))
    while entries and len(archives) < MAX_ARCHIVES:
        archives.append(folder / NAME.format(len(archives) + 1))
        entries = _pack_some(archives[-1], entries, max_bytes)
    if entries:
        print(f"{len(entries)} entries of Triton's cache did not fit into {MAX_ARCHIVES} archives", file=sys.stderr)
    return archives


def unpack(path: Path) -> int:
    """Adds the kernels of an archive, or of all archives in a directory, to Triton's cache. Returns the number of
    kernels. Raises FileNotFoundError if there is no archive."""
    archives = sorted(path.glob(NAME.format("*"))) if path.is_dir() else [path]
    if not archives:
        raise FileNotFoundError(f"no {NAME.format('*')} in {path}")
    return sum(_unpack_one(archive) for archive in archives)


def _entries(cache: Path) -> Iterator[Path]:
    """Yields the cache's directories, one per kernel, newest first."""
    found = [entry for entry in cache.iterdir() if entry.is_dir()] if cache.is_dir() else []
    yield from sorted(found, key=lambda entry: -entry.stat().st_mtime)


def _pack_some(archive: Path, entries: Sequence[Path], max_bytes: int) -> list[Path]:
    """Packs entries into one archive. Returns the entries that did not fit."""
    buffer = io.BytesIO()
    left = list(entries)
    with tarfile.open(fileobj=buffer, mode="w:xz", preset=3) as packed:
        # The compressor buffers some blocks. The margin covers them.
        while left and buffer.tell() < max_bytes - (4 << 20):
            entry = left.pop(0)
            for path in sorted(entry.iterdir()):
                if path.is_file() and path.suffix not in _LEFT_OUT and ".tmp." not in path.name:
                    packed.add(path, f"{entry.name}/{path.name}")
    archive.write_bytes(buffer.getvalue())
    return left


def _unpack_one(archive: Path) -> int:
    cache = location()
    kernels = 0
    with tarfile.open(archive, "r:xz") as packed:
        for member in packed:
            source = packed.extractfile(member) if member.isfile() else None
            parts = Path(member.name).parts
            if source is None or len(parts) != 2 or ".." in parts:
                continue
            folder, name = cache / parts[0], parts[1]
            folder.mkdir(parents=True, exist_ok=True)
            content = source.read()
            if name.startswith(_GROUP):
                content, kernels = _moved(content, folder), kernels + 1
            # Replace files atomically, because other processes may read the cache at the same time.
            temporary = folder / f".{uuid.uuid4().hex}"
            temporary.write_bytes(content)
            temporary.chmod(0o755)
            os.replace(temporary, folder / name)
    return kernels


def _moved(group: bytes, folder: Path) -> bytes:
    """Rewrites a list of paths for `folder`."""
    paths = json.loads(group)["child_paths"]
    return json.dumps({"child_paths": {name: str(folder / name) for name in paths}}).encode()


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 2 or arguments[0] not in ("pack", "unpack"):
        print(__doc__, file=sys.stderr)
        return 2
    if arguments[0] == "unpack":
        print(f"{unpack(Path(arguments[1]))} kernels unpacked into {location()}")
    else:
        for archive in pack(Path(arguments[1])):
            print(archive)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
