"""A name server of a few names with IPv4 addresses, over UDP: what Docker's is to containers."""

import socket
import struct
import threading

A, IN = 1, 1
TTL = 1
NO_ERROR, NO_SUCH_NAME = 0, 3


class NameServer:
    """Answers until it is closed. A name without addresses does not exist; other records than A have no entries."""

    def __init__(self, address, records):
        self.records = records
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.address = self.socket.getsockname()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        while True:
            try:
                question, client = self.socket.recvfrom(4096)
                if not question:
                    return
                self.socket.sendto(self.answer(question), client)
            except (OSError, ValueError, IndexError, struct.error):
                if self.socket.fileno() < 0:
                    return

    def answer(self, question):
        identifier, flags = struct.unpack_from(">HH", question)
        name, end = read_name(question, 12)
        kind, _ = struct.unpack_from(">HH", question, end)
        addresses = self.records.get(name.lower().rstrip("."))
        code = NO_SUCH_NAME if addresses is None else NO_ERROR
        found = addresses if addresses and kind == A else []
        head = struct.pack(">HHHHHH", identifier, 0x8180 | (flags & 0x0100) | code, 1, len(found), 0, 0)
        entries = (struct.pack(">HHHIH", 0xC00C, A, IN, TTL, 4) + socket.inet_aton(address) for address in found)
        return head + question[12 : end + 4] + b"".join(entries)

    def close(self):
        # An empty message ends the thread.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", self.address)
        self.thread.join(timeout=5)
        self.socket.close()


def read_name(message, at):
    """A name that is not compressed, and where it ends."""
    labels = []
    while (length := message[at]) != 0:
        labels.append(message[at + 1 : at + 1 + length].decode("ascii"))
        at += 1 + length
    return ".".join(labels), at + 1
