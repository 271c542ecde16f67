"""warm - processes of an interpreter that has imported torch before.

A test here is many short programs, and two of their three seconds were the
import of torch. A server imports it once and forks for each program. Keeps
true: a program runs alone, as `__main__` of its script, with the arguments and
the environment that it was given and nothing else that another one did; the
server itself runs nothing and starts no thread. What an interpreter or a
library looks at when it starts cannot be given that late: see needs_new().

Between the server and the program stands a keeper, which says how it ended,
and lets its number go only when the test is done with it.
"""
import atexit
import faulthandler
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback

_servers = {}  # by interpreter; one for each process that runs tests


def needs_new(env):
    """Whether a program with these variables needs an interpreter of its own:
    the daemon asks /proc for a rank, where the server's variables are."""
    return any(name.startswith(("PYTHON", "LD_", "OMP_", "KMP_", "TORCH",
                                "RANK", "WORLD_SIZE")) for name in env)


def _server(python, env):
    if python not in _servers:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            _servers[python] = mine, subprocess.Popen(
                [python, os.path.abspath(__file__), str(theirs.fileno())],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=env)
    return _servers[python][0]


class Process:
    """What tests use of subprocess.Popen: its output and errors are one."""

    def __init__(self, python, argv, env):
        self.args, self.returncode, self.output = argv, None, b""
        request = json.dumps([argv, env]).encode()
        self.keeper, theirs = socket.socketpair()
        reader, writer = os.pipe()
        self.stdout = open(reader, encoding="utf-8", errors="replace")
        try:
            socket.send_fds(_server(python, env), [request],
                            [theirs.fileno(), writer])
        except BrokenPipeError:
            pass  # it is said below
        finally:
            theirs.close()
            os.close(writer)
        self.pid = int(self._line() or 0)
        assert self.pid, f"no process for {argv}: {python} has ended"

    def _line(self):
        line = b""
        while not line.endswith(b"\n"):
            more = self.keeper.recv(1)
            if not more:
                return None
            line += more
        return line

    def _await(self, what, deadline):
        left = None if deadline is None else max(0, deadline - time.monotonic())
        if not select.select([what], [], [], left)[0]:
            raise subprocess.TimeoutExpired(self.args, left, self.output)

    def communicate(self, timeout=None):
        """All it has said as text, and None, once it has ended."""
        deadline = None if timeout is None else time.monotonic() + timeout
        more = None
        while more != b"" and not self.stdout.closed:
            self._await(self.stdout, deadline)
            more = os.read(self.stdout.fileno(), 65536)
            self.output += more
        self.stdout.close()
        self._wait(deadline)
        return self.output.decode(errors="replace"), None

    def _wait(self, deadline):
        if self.returncode is None:
            self._await(self.keeper, deadline)
            self.returncode = int(self._line() or -signal.SIGKILL)
            self.keeper.close()

    def wait(self, timeout=None):
        """Its exit code, less than zero for the signal that ended it."""
        self._wait(None if timeout is None else time.monotonic() + timeout)
        self.stdout.close()
        return self.returncode

    def abort(self):
        """It says where it stands, and ends."""
        os.kill(self.pid, signal.SIGABRT)

    def kill(self):
        """At once; nothing if it has ended."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)


# --- the server ---

def _keep(pid, test):
    try:
        test.sendall(b"%d\n" % pid)
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        test.sendall(b"%d\n" % (end.si_status if end.si_code == os.CLD_EXITED
                                else -end.si_status))
        test.recv(1)  # it has read that, and uses the number no more
    except OSError:
        pass  # the test has ended before
    os._exit(0)


def _become(argv, env, output):
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    os.environ.clear()
    os.environ.update(env)
    faulthandler.enable()
    sys.argv = argv
    sys.path[0] = os.path.dirname(argv[0])
    code = 1
    try:
        runpy.run_path(argv[0], run_name="__main__")
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
        if isinstance(e.code, str):
            print(e.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        # As an interpreter ends, but for taking all modules apart: 0.8 s.
        # pylint: disable=protected-access
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve(requests):
    """Until nobody can ask any more."""
    keepers = set()
    while True:
        text, fds, _, _ = socket.recv_fds(requests, 1 << 18, 2)
        if not text:
            return
        keeper = os.fork()
        if keeper == 0:
            requests.close()
            test = socket.socket(fileno=fds[0])
            pid = os.fork()
            if pid == 0:
                test.close()
                _become(*json.loads(text), fds[1])
            os.close(fds[1])
            _keep(pid, test)
        for fd in fds:
            os.close(fd)
        keepers.add(keeper)
        keepers = {k for k in keepers if os.waitpid(k, os.WNOHANG)[0] == 0}


if __name__ == "__main__":
    # pylint: disable=unused-import
    import numpy  # noqa: F401
    import safetensors.torch  # noqa: F401
    import torch.distributed.checkpoint  # noqa: F401
    # What the first DTensor of a process imports, in half a second of it.
    import torch._dynamo  # noqa: F401
    _serve(socket.socket(fileno=int(sys.argv[1])))
