"""Clear the GPU code that one compute capability does not run, so that a library compresses well.

    python scripts/environments/trim_cuda.py libonnxruntime_providers_cuda.so 9.0 trimmed.so

The library has machine code for a dozen compute capabilities. PTX and the code for all others are
overwritten with zeros in place, so that offsets stay the same and xz compresses 284 MB to 50 MiB
instead of 160. The result is for measurements on one kind of GPU.

The format is that of nvcc's fat binaries: containers of ``magic``, header and content sizes, with
entries of kind, header and content sizes and compute capability, in the ELF section .nv_fatbin.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_SECTION = ".nv_fatbin"
_MAGIC = 0xBA55ED50
_MACHINE_CODE = 2  # the kind of an entry; 1 is PTX


class Entry(NamedTuple):
    """Code for one compute capability (90 is 9.0), and its place in the file."""

    kind: int
    capability: int
    start: int
    stop: int


def section(library: bytes | bytearray, wanted: str) -> range:
    """Return the offsets of a section of an ELF file (64 bits, little-endian)."""
    (table,) = struct.unpack_from("<Q", library, 40)
    size, count, names_at = struct.unpack_from("<3H", library, 58)
    headers = [struct.unpack_from("<2I4Q", library, table + size * at) for at in range(count)]
    names = headers[names_at][4]
    for name, _, _, _, offset, length in headers:
        start = names + name
        if library[start : library.index(b"\0", start)].decode() == wanted:
            return range(offset, offset + length)
    raise SystemExit(f"error: the library has no section {wanted}, so no CUDA code")


def entries(library: bytes | bytearray, where: range) -> Iterator[Entry]:
    """Yield the entries of all containers of a section; containers are aligned to 8 bytes."""
    at = where.start
    while at + 16 <= where.stop:
        magic, _, header, content = struct.unpack_from("<IHHQ", library, at)
        if magic != _MAGIC:
            at += 8
            continue
        entry, at = at + header, at + header + content
        while entry < at:
            kind, _, own, length = struct.unpack_from("<2HIQ", library, entry)
            (capability,) = struct.unpack_from("<I", library, entry + 28)
            yield Entry(kind, capability, entry + own, entry + own + length)
            entry += own + length


def main() -> None:
    """Write the trimmed copy; fail if it has no code for the compute capability."""
    source, wanted, target = sys.argv[1:]
    library = bytearray(Path(source).read_bytes())
    capability, kept = int(wanted.replace(".", "")), 0
    for entry in list(entries(library, section(library, _SECTION))):
        if (entry.kind, entry.capability) == (_MACHINE_CODE, capability):
            kept += entry.stop - entry.start
        else:
            library[entry.start : entry.stop] = bytes(entry.stop - entry.start)
    if not kept:
        raise SystemExit(f"error: {source} has no machine code for compute capability {wanted}")
    Path(target).write_bytes(library)
    print(f"kept {kept / 2**20:.0f} MiB of machine code for {wanted}")


if __name__ == "__main__":
    main()
