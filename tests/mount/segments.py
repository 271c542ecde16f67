"""The wire protocol of segments, spoken byte by byte: a client of the mount
that shares no code with the library (store/base/segment_wire.h)."""
import array
import ctypes
import errno
import fcntl
import mmap
import os
import socket
import struct

ACQUIRE, MAPPED, RETURN, DROP, RELEASE = 1, 2, 3, 4, 5
REQUEST = struct.Struct("=II16s16sQQQ")
REPLY = struct.Struct("=IiQQQQII")
WHERE = struct.Struct("=110sH16s")
COMMIT = struct.Struct("=QQQIIQq256s")


def _ioc(direction, number, size):
    return direction << 30 | size << 16 | ord("k") << 8 | number


IOC_SEGMENTS = _ioc(2, 3, WHERE.size)
IOC_COMMIT = _ioc(3, 4, COMMIT.size)
IOC_WAIT = _ioc(1, 5, 8)


class Refused(OSError):
    def __init__(self, reply):
        super().__init__(-reply["error"], os.strerror(-reply["error"]))
        self.busy = reply["busy"]


class Segment:
    def __init__(self, client, reply, memory):
        self.client, self.memory = client, memory
        self.id, self.generation = reply["id"], reply["generation"]
        self.size = reply["size"]
        self.refused = None  # what the last commit said

    def commit(self, directory, name, mode=0o644, **other):
        q = {"id": self.id, "generation": self.generation, "size": self.size}
        q.update(other)
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            raw = bytearray(COMMIT.pack(q["id"], q["generation"], q["size"],
                                        mode, 0, 0, 0, os.fsencode(name)))
            fcntl.ioctl(fd, IOC_COMMIT, raw)
            _, _, _, _, self.refused, ino, _, _ = COMMIT.unpack(raw)
            return ino
        finally:
            os.close(fd)


class Client:
    """Connects; keeps the mappings by segment id."""

    def __init__(self, mount, token=None):
        self.mount = mount
        fd = os.open(mount, os.O_RDONLY | os.O_DIRECTORY)
        try:
            raw = bytearray(WHERE.size)
            fcntl.ioctl(fd, IOC_SEGMENTS, raw)
        finally:
            os.close(fd)
        address, length, self.token = WHERE.unpack(raw)
        if token is not None:
            self.token = token
        path = address[2:length]
        self.address = path if path[:1] == b"\0" else path.rstrip(b"\0")
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(240)
        self.sock.connect(self.address)
        self.mapped = {}
        self.fds = {}
        self.releases = []

    def receive(self):
        fds = array.array("i")
        raw, control, _, _ = self.sock.recvmsg(REPLY.size,
                                               socket.CMSG_SPACE(4))
        if not raw:
            raise ConnectionResetError(errno.ECONNRESET,
                                       "the mount closed the socket")
        for _, _, data in control:
            fds.frombytes(data[:4])
        op, error, ident, generation, size, busy, fresh, _ = REPLY.unpack(raw)
        return {"op": op, "error": error, "id": ident, "size": size,
                "generation": generation, "busy": busy, "fresh": fresh,
                "fd": fds[0] if fds else -1}

    def ask(self, op, signature=b"s", size=0, ident=0, generation=0):
        self.sock.send(REQUEST.pack(1, op, self.token, signature.ljust(16),
                                    size, ident, generation))
        while True:
            reply = self.receive()
            if reply["op"] == RELEASE:
                self.releases.append(reply["id"])
                continue
            if reply["error"]:
                raise Refused(reply)
            return reply

    def acquire(self, signature=b"s", size=1 << 20, seal=True):
        reply = self.ask(ACQUIRE, signature, size)
        if reply["fresh"]:
            self.fds[reply["id"]] = reply["fd"]
            self.mapped[reply["id"]] = mmap.mmap(reply["fd"], size)
            if seal:
                self.ask(MAPPED, ident=reply["id"],
                         generation=reply["generation"])
        segment = Segment(self, reply, self.mapped[reply["id"]])
        segment.fresh = bool(reply["fresh"])
        return segment

    def give_back(self, segment):
        self.ask(RETURN, ident=segment.id, generation=segment.generation)

    def drop(self, ident):
        self.mapped.pop(ident).close()
        os.close(self.fds.pop(ident))
        self.ask(DROP, ident=ident)

    def drop_released(self):
        """Do what the mount asked for."""
        dropped, self.releases = self.releases, []
        for ident in dropped:
            self.drop(ident)
        return len(dropped)

    def wait(self, ino):
        fd = os.open(self.mount, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, IOC_WAIT, struct.pack("=Q", ino))
        finally:
            os.close(fd)

    def close(self):
        for memory in self.mapped.values():
            memory.close()
        for fd in self.fds.values():
            os.close(fd)
        self.sock.close()


assert ctypes.sizeof(ctypes.c_long) == 8
