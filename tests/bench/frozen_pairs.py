"""Times writing and closing while the shared directory is frozen.

Prints "OURS OTHER" for each round, in nanoseconds: a file that was made before
the file system below the shared directory was frozen (making it is that one's
matter), written and closed in calls of 1 MiB, and the same on a mount without
shared=.
"""

import os
import subprocess
import sys
import time

CALL = 1 << 20


def write(fd, block, size):
    begin = time.monotonic_ns()
    for at in range(0, size, CALL):
        block[:8] = at.to_bytes(8, "little")
        os.write(fd, block)
    os.close(fd)
    return time.monotonic_ns() - begin


def main():
    rounds, size = int(sys.argv[1]), int(sys.argv[2])
    below, ours, other = sys.argv[3:]
    for n in range(rounds + 1):
        block = bytearray(os.urandom(CALL))
        names = [os.path.join(d, f"step_{n}.bin") for d in (ours, other)]
        fds = [os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
               for name in names]
        subprocess.run(["fsfreeze", "-f", below], check=True)
        try:
            took = [write(fd, block, size) for fd in fds]
        finally:
            subprocess.run(["fsfreeze", "-u", below], check=True)
        if n > 0:  # the size was not known before
            print(*took)
        for name in names:
            os.unlink(name)


main()
