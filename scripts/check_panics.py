#!/usr/bin/env python3
"""Refuses a WebAssembly module that could panic where it could not before.

    check_panics.py MODULE KNOWN

A panic that the compiler could not rule out leaves its source location in the module's data: a pointer to a file's
name, the name's length, a line, a column. Every location of our own is a fault: nothing of ours may panic in a proxy.
Those in dependencies and the standard library are compared, file by file, with KNOWN, which says of each why it is
there. Exit code 1 and one line for each fault.
"""

import re
import struct
import sys
from collections import defaultdict
from pathlib import Path

from check_module import sections

DATA_SECTION = 11
I32_CONST = 0x41
END = 0x0B
ACTIVE, PASSIVE, ACTIVE_IN_MEMORY = 0, 1, 2
NAME = re.compile(rb"[A-Za-z0-9_./+@-]+\.rs")
# Where the standard library and crates are: what stands before differs between machines, versions between updates.
OF_STD = re.compile(r"(?:.*/)?(library/(?:core|alloc|std)/src/.*)")
OF_CRATE = re.compile(r"(?:.*/)?([A-Za-z0-9_-]+?)-\d+\.\d+\.\d+[^/]*/(.*)")


def segments(data):
    """(address, bytes) of every part of the module's data that has an address of its own."""
    for section, body in sections(data):
        if section != DATA_SECTION:
            continue
        for _ in range(body.number()):
            kind = body.number()
            if kind == ACTIVE_IN_MEMORY:
                body.number()
            address = None
            if kind != PASSIVE:
                if body.byte() != I32_CONST:
                    sys.exit("check_panics.py: data at an address that is no constant")
                address = body.number()
                if body.byte() != END:
                    sys.exit("check_panics.py: data at an address that is no constant")
            contents = body.take(body.number())
            if address is not None:
                yield address, contents


def locations(data):
    """The (line, column) pairs of every source file that the data names, by the file's path."""
    parts = list(segments(data))
    names = {}
    for address, contents in parts:
        for found in NAME.finditer(contents):
            # Names stand one after another: one may look like the end of another.
            for start in range(found.start(), found.end()):
                names[address + start] = contents[start : found.end()].decode()
    at = defaultdict(set)
    for _, contents in parts:
        for offset in range(0, len(contents) - 15, 4):
            pointer, length, line, column = struct.unpack_from("<4I", contents, offset)
            name = names.get(pointer)
            if name is not None and len(name) in (length, length - 1) and 0 < line < 100_000 and 0 < column < 1_000:
                at[name].add((line, column))
    return at


def short(path):
    """A path without what differs between machines and versions; none if it is of our own."""
    if found := OF_STD.fullmatch(path):
        return found[1]
    if found := OF_CRATE.fullmatch(path):
        return f"{found[1]}/{found[2]}"
    return None


def known(path):
    """The files of KNOWN; what is in its comments says why."""
    lines = Path(path).read_text().splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def main(module, known_path):
    ours, found = {}, defaultdict(set)
    for path, places in locations(Path(module).read_bytes()).items():
        if name := short(path):
            found[name] |= places
        else:
            ours[path] = places
    others = found.keys()
    expected = known(known_path)
    print(f"{module}: {len(others)} files of dependencies and std can panic, {len(ours)} of ours")
    faults = [
        f"{path}:{line}:{column} can panic: use checked access or arithmetic there"
        for path, places in sorted(ours.items())
        for line, column in sorted(places)
    ]
    for path in sorted(others - expected):
        at = ", ".join(f"{line}:{column}" for line, column in sorted(found[path]))
        faults.append(
            f"{path} can panic at {at}, which is new: read these lines, see who calls them (twiggy paths, or a build with "
            f"names); what outside input can reach is to be bounded, the rest named in {known_path} with the reason"
        )
    # Which of them the compiler can rule out changes with little.
    for path in sorted(expected - others):
        print(f"{path} cannot panic: it may go from {known_path}")
    if faults:
        sys.exit("\n".join(f"{module}: {fault}" for fault in faults))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__.strip())
    main(*sys.argv[1:])
