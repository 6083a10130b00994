#!/usr/bin/env python3
"""Prints the path, size and imports of a WebAssembly module, and refuses one that a proxy could not load.

    check_module.py MODULE MAX_BYTES

The only imports allowed are functions `env.proxy_*`: anything else (a clock, a file, a random source) does not
exist in the proxy, and the module would be refused at start. MAX_BYTES bounds what every VM has to compile.
Exit code 1 and one line for each fault.
"""

import sys
from pathlib import Path

IMPORT_SECTION = 2
KINDS = ["function", "table", "memory", "global", "tag"]


class Reader:
    """Reads the WebAssembly binary format, front to back."""

    def __init__(self, data):
        self.data = data
        self.at = 0

    def byte(self):
        self.at += 1
        return self.data[self.at - 1]

    def number(self):
        """An unsigned LEB128 number."""
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def take(self, length):
        self.at += length
        return self.data[self.at - length : self.at]

    def name(self):
        return self.take(self.number()).decode()

    def limits(self):
        flags = self.number()
        self.number()
        if flags & 1:
            self.number()

    def skip_type(self, kind):
        """Passes over the type that follows an import of that kind."""
        match kind:
            case "function":
                self.number()
            case "table":
                self.byte()
                self.limits()
            case "memory":
                self.limits()
            case _:
                self.take(2)


def sections(data):
    """(id, contents) of every section."""
    if data[:8] != b"\0asm\1\0\0\0":
        sys.exit(f"{Path(sys.argv[0]).name}: not a WebAssembly module of version 1")
    file = Reader(data)
    file.take(8)
    while file.at < len(data):
        yield file.byte(), Reader(file.take(file.number()))


def imports(data):
    """(kind, module, name) of every import."""
    for section, body in sections(data):
        if section != IMPORT_SECTION:
            continue
        for _ in range(body.number()):
            module, name, kind = body.name(), body.name(), KINDS[body.byte()]
            body.skip_type(kind)
            yield kind, module, name


def main(path, max_bytes):
    data = Path(path).read_bytes()
    found = list(imports(data))
    print(f"{path}: {len(data):,} bytes of {max_bytes:,} allowed, {len(found)} imports")
    faults = [
        f"imports {kind} {module}.{name}: only functions env.proxy_* exist in a proxy"
        for kind, module, name in found
        if (kind, module) != ("function", "env") or not name.startswith("proxy_")
    ]
    if len(data) > max_bytes:
        faults.append(f"{len(data):,} bytes: allowed are {max_bytes:,}")
    if faults:
        sys.exit("\n".join(f"{path}: {fault}" for fault in faults))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__.strip())
    main(sys.argv[1], int(sys.argv[2]))
