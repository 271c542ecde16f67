"""Which rank wrote a file, and which ranks open whose files."""
import ctypes
import errno
import json
import os
import socket
import subprocess
import sys
import tempfile

import ckptest as ck
import layouts
from ckptest import KIB, MIB, fails, get, same

NAMES = ("rank", "rank_kind", "world", "host", "job")
# What this process itself may have been started with.
CLEAN = {k: v for k, v in os.environ.items()
         if not k.startswith(("OMPI_", "PMI", "SLURM_", "TORCHELASTIC_")) and
         k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
HOST = socket.gethostname()


def writer(path):
    """What the extended attributes say; what is absent is not in it."""
    found = {}
    for name in NAMES:
        try:
            found[name] = ck.xattr(path, "writer_" + name)
        except OSError as e:
            assert e.errno == errno.ENODATA, e
    return found


def known(rank, world=None, job=None, kind="global"):
    want = {"rank": str(rank), "rank_kind": kind, "host": HOST}
    want.update({k: str(v) for k, v in (("world", world), ("job", job))
                 if v is not None})
    return want


UNKNOWN = {"host": HOST}


def is_writer(path, want):
    got = writer(path)
    assert got == want, f"{path}: {got}, not {want}"


def run(argv, **environment):
    """A program of its own, started with these variables."""
    done = subprocess.run(argv, env=dict(CLEAN, **environment), check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          stdin=subprocess.DEVNULL, timeout=ck.WAIT_BOUND)
    assert done.returncode == 0, (argv, done.stdout)


def save(path, size=9, source="/dev/zero", **environment):
    run(["dd", f"if={source}", f"of={path}", f"bs={size}", "count=1"],
        **environment)


def reads(m):
    return {row.pop("rank"): row for row in m.status()["reads"]}


@ck.mounted()
def a_file_remembers_the_rank_that_its_writer_was_started_with(m):
    ranks = {}
    for rank in range(4):  # as torchrun starts them, at once
        ranks[rank] = subprocess.Popen(
            [sys.executable, "-c", "import sys\n"
             "for size in (9, 200000):\n"
             "    with open(f'{sys.argv[1]}_{size}', 'wb') as f:\n"
             "        f.write(bytes(size))", m.path(f"shard_{rank}")],
            env=dict(CLEAN, RANK=str(rank), WORLD_SIZE="4",
                     LOCAL_RANK=str(rank % 2), TORCHELASTIC_RUN_ID="run-1"))
    for process in ranks.values():
        assert process.wait(ck.WAIT_BOUND) == 0
    save(m.path("ompi"), OMPI_COMM_WORLD_RANK="2", OMPI_COMM_WORLD_SIZE="3")
    save(m.path("slurm"), SLURM_PROCID="1", SLURM_NTASKS="2",
         SLURM_JOB_ID="77", PMI_RANK="x")
    save(m.path("pmi"), PMI_RANK="5", PMI_SIZE="6")
    save(m.path("none"))
    save(m.path("alone"), WORLD_SIZE="1")
    run(["cp", m.path("none"), m.path("copied")], WORLD_SIZE="8")
    for stage in m.stages():
        for rank in range(4):
            for size in (9, 200000):
                is_writer(m.path(f"shard_{rank}_{size}"),
                          known(rank, 4, "run-1"))
        is_writer(m.path("ompi"), known(2, 3))
        is_writer(m.path("slurm"), known(1, 2, 77))
        is_writer(m.path("pmi"), known(5, 6))
        is_writer(m.path("none"), UNKNOWN)
        is_writer(m.path("alone"), known(0, 1))
        is_writer(m.path("copied"), UNKNOWN)
        assert os.listxattr(m.path("ompi")) == [], stage
    os.mkdir(m.path("d"))
    fails(errno.ENODATA, ck.xattr, m.path("d"), "writer_host")
    m.unmount()
    m.fsck()


@ck.mounted()
def hostile_environments_say_nothing(m):
    for n, value in enumerate(("", "-1", "1 2", "0x1", "3\n", "\udcff",
                               "9" * 30, "1" * 60000, "2147483648")):
        save(m.path(f"f{n}"), RANK=value, SLURM_JOB_ID=value,
             TORCHELASTIC_RUN_ID="a b")
        got = writer(m.path(f"f{n}"))
        assert "rank" not in got, (value[:40], got)
        assert len(got.get("job", "")) <= 128, got
    save(m.path("world"), RANK="4", WORLD_SIZE="4")
    is_writer(m.path("world"), UNKNOWN)
    # A very long one, with the rank at its end, within what is looked at.
    big = {f"VARIABLE_{n}": "x" * 100000 for n in range(8)}
    save(m.path("long"), **big, RANK="6")
    is_writer(m.path("long"), known(6))
    big = {f"VARIABLE_{n}": "x" * 100000 for n in range(11)}
    save(m.path("__2_0.distcp"), **big, RANK="6")
    is_writer(m.path("__2_0.distcp"), known(2))
    m.unmount()
    m.fsck()


@ck.mounted()
def the_name_speaks_where_the_environment_does_not(m):
    for name, want in (
            ("__3_1.distcp", known(3)),
            ("hint__12_0.distcp", known(12)),
            ("rank_7.pt", known(7)),
            ("rng_state_2.pth", known(2)),
            ("mp_rank_01_model_states.pt", known(1, kind="model_parallel")),
            ("bf16_zero_pp_rank_4_mp_rank_01_optim_states.pt",
             known(4, kind="data_parallel")),
            (".metadata", UNKNOWN), ("__3.distcp", UNKNOWN)):
        save(m.path(name))
        is_writer(m.path(name), want)
        save(m.path(name), RANK="9")
        is_writer(m.path(name), known(9))
    m.unmount()
    m.fsck()


@ck.mounted()
def a_process_is_known_by_what_it_runs_now(m):
    # The same process number: a shell, then what it becomes by exec.
    run(["sh", "-c", f"echo > {m.path('a')}; RANK=5 exec sh -c "
         f"'echo > {m.path('b')}; unset RANK; exec sh -c \""
         f"echo > {m.path('c')}\"'"], RANK="3")
    is_writer(m.path("a"), known(3))
    is_writer(m.path("b"), known(5))
    is_writer(m.path("c"), UNKNOWN)
    # Between vfork and exec the memory is the parent's: its file actions are
    # done with the parent's environment, the program has its own.
    for rank in range(3):
        pid = os.posix_spawn(
            "/bin/sh", ["sh", "-c", f"echo > {m.path(f'p{rank}')}"],
            dict(CLEAN, RANK=str(rank)), file_actions=[
                (os.POSIX_SPAWN_OPEN, 1, m.path(f"log{rank}"),
                 os.O_WRONLY | os.O_CREAT, 0o644)])
        assert os.waitpid(pid, 0)[1] == 0
        is_writer(m.path(f"p{rank}"), known(rank))
    # Many short processes, so that numbers and slots are used again.
    for n in range(300):
        run(["sh", "-c", f": > {m.path(f'n{n}')}"], RANK=str(n))
    for n in range(300):
        is_writer(m.path(f"n{n}"), known(n))


@ck.mounted()
def threads_write_as_their_process(m):
    run([sys.executable, "-c",
         "import sys, threading\n"
         "def save(n):\n"
         "    open(f'{sys.argv[1]}/t{n}', 'w').close()\n"
         "all = [threading.Thread(target=save, args=[n]) for n in range(8)]\n"
         "for t in all: t.start()\n"
         "for t in all: t.join()\n", m.mnt], RANK="6", WORLD_SIZE="7")
    for n in range(8):
        is_writer(m.path(f"t{n}"), known(6, 7))


@ck.mounted()
def a_process_of_another_pid_namespace_is_no_other_one(m):
    unshare = ck.tool("unshare")
    if subprocess.run([unshare, "-pf", "--mount-proc", "true"],
                      check=False, capture_output=True).returncode:
        ck.skip("no new pid namespace can be made")
    # It is process 1 there; here that is an entirely different one.
    run([unshare, "-pf", "--mount-proc", "sh", "-c",
         f"echo > {m.path('a')}; (echo > {m.path('b')})"], RANK="4")
    is_writer(m.path("a"), known(4))
    is_writer(m.path("b"), known(4))
    run([unshare, "-pf", "sh", "-c", f"echo > {m.path('c')}"], RANK="5")
    is_writer(m.path("c"), known(5))


@ck.mounted(start=False)
def a_process_outside_the_daemons_pid_namespace_is_nobody(m):
    # Its /proc is ours, where its numbers are those of other processes; then
    # it has its own, and the kernel has no number for us.
    for own_proc in (False, True):
        ck.in_pid_namespace(m, own_proc)
        m.start()
        save(m.path("f"), RANK="3")
        is_writer(m.path("f"), UNKNOWN)
        save(m.path("__2_0.distcp"), RANK="3")
        is_writer(m.path("__2_0.distcp"), known(2))
        m.unmount()
    m.fsck()


@ck.mounted()
def it_goes_with_the_file_and_not_with_the_name(m):
    a, b, c = m.path("__1_0.distcp"), m.path("rank_2.pt"), m.path("c")
    for size in (9, 100 * KIB):
        save(a, size, RANK="7", WORLD_SIZE="8")
        os.link(a, c)
        os.rename(a, b)
        for stage in m.stages(b):
            is_writer(b, known(7, 8))
            is_writer(c, known(7, 8))
        # Who begins it anew has written it, under either name.
        save(c, size, RANK="1")
        for stage in m.stages(b):
            is_writer(b, known(1))
        # Who only changes or cuts it has not.
        run(["dd", "if=/dev/zero", f"of={b}", "count=1", "conv=notrunc"],
            RANK="5")
        run(["truncate", "-s", "5", b], RANK="5")
        is_writer(b, known(1))
        # Nobody in particular: nothing of the old one stays.
        save(c, size)
        is_writer(c, known(2))  # its first name is rank_2.pt
        os.unlink(b)
        is_writer(c, known(2))
        os.unlink(c)
        save(c, size)
        is_writer(c, UNKNOWN)
        os.unlink(c)
    m.unmount()
    m.fsck()


@ck.mounted("empty_in_place=0")
def a_reader_of_what_is_replaced_keeps_its_writer(m):
    save(m.path("f"), 100 * KIB, RANK="1")
    m.flush()
    fd = os.open(m.path("f"), os.O_RDONLY)
    old = os.fstat(fd).st_ino
    save(m.path("f"), 100 * KIB, RANK="2")
    assert os.stat(m.path("f")).st_ino != old
    is_writer(m.path("f"), known(2))
    assert os.getxattr(fd, "user.ckptfs.writer_rank") == b"1"
    os.close(fd)
    for stage in m.stages(m.path("f")):
        is_writer(m.path("f"), known(2))
    m.unmount()
    m.fsck()


@ck.mounted()
def a_daemon_that_died_left_the_writer_behind(m):
    save(m.path("f"), 100 * KIB, RANK="1")
    save(m.path("g"), RANK="2")
    m.kill()
    m.start()
    is_writer(m.path("f"), known(1))
    is_writer(m.path("g"), known(2))
    save(m.path("h"), 100 * KIB, RANK="1")
    os.sync()
    m.power_cut()
    m.start()
    m.unmount()
    m.fsck()


@ck.mounted()
def a_file_from_a_segment_is_of_the_rank_that_commits_it(m):
    code = ("import sys; sys.path.insert(0, sys.argv[1])\n"
            "from segments import Client\n"
            "c = Client(sys.argv[2])\n"
            "for step in range(2):\n"
            "    s = c.acquire(size=1 << 20)\n"
            "    s.memory[:] = bytes([step]) * s.size\n"
            "    c.wait(s.commit(sys.argv[2], sys.argv[3]))\n"
            "c.close()\n")

    def commit(name, **environment):
        run([sys.executable, "-c", code, ck.HERE, m.mnt, name], **environment)
    commit("f", RANK="3", WORLD_SIZE="4")
    is_writer(m.path("f"), known(3, 4))
    commit("f", RANK="1")
    is_writer(m.path("f"), known(1))
    with open(m.path("f"), "rb"):  # the name gets a new number
        commit("f", RANK="2")
    is_writer(m.path("f"), known(2))
    commit("__6_0.distcp")
    for stage in m.stages(m.path("f")):
        is_writer(m.path("f"), known(2))
        is_writer(m.path("__6_0.distcp"), known(6))
        same(get(m.path("f")), bytes([1]) * MIB, stage)
    m.unmount()
    m.fsck()


@ck.mounted()
def inspect_says_who_wrote_it(m):
    save(m.path("f"), RANK="3", WORLD_SIZE="8", SLURM_JOB_ID="5")
    other = "zero_pp_rank_2_mp_rank_00_optim_states.pt"
    with tempfile.NamedTemporaryFile() as f:  # what the name promises
        f.write(layouts.torch_save({}))
        f.flush()
        save(m.path(other), MIB, f.name)
    save(m.path("none"))

    def inspect(name):
        return json.loads(m.ctl("inspect", "--json", m.path(name)))["writer"]
    assert inspect("f") == {"rank": 3, "rank_kind": "global", "world_size": 8,
                            "host": HOST, "job": "5",
                            "source": "environment"}, inspect("f")
    assert f"rank 3 of 8 on {HOST}, job 5 (environment)" in \
        m.ctl("inspect", m.path("f"))
    assert inspect(other) == {"rank": 2, "rank_kind": "data_parallel",
                              "host": HOST, "source": "name"}, inspect(other)
    assert "data parallel rank 2 on" in m.ctl("inspect", m.path(other))
    assert inspect("none") == {"host": HOST}, inspect("none")


@ck.mounted()
def what_is_shown_can_not_be_set(m):
    save(m.path("f"), RANK="3")
    for name in NAMES:
        key = "user.ckptfs.writer_" + name
        fails(errno.EPERM, os.setxattr, m.path("f"), key, b"1")
        fails(errno.EPERM, os.removexattr, m.path("f"), key)
    fails(errno.ENODATA, ck.xattr, m.path("f"), "writer_")
    is_writer(m.path("f"), known(3))
    # A short buffer is told so.
    buffer = ctypes.create_string_buffer(1)
    assert ck.libc.getxattr(os.fsencode(m.path("f")),
                            b"user.ckptfs.writer_host", buffer, 1) == -1
    assert ctypes.get_errno() == errno.ERANGE or len(HOST) == 1


@ck.mounted()
def opens_of_own_and_foreign_files_are_counted_by_rank(m):
    size = 100 * KIB
    for rank in range(2):
        save(m.path(f"f{rank}"), size, RANK=str(rank))
    save(m.path("nobodys"), 9)
    save(m.path("zero_pp_rank_1_mp_rank_00_optim_states.pt"), 9)
    assert m.status()["reads"] == [], m.status()["reads"]
    assert "opened" not in m.ctl("status", m.mnt)
    for stage in m.stages(m.path("f0"), m.path("f1")):
        run(["cat", m.path("f1"), m.path("f1"), m.path("f0"),
             m.path("nobodys"),
             m.path("zero_pp_rank_1_mp_rank_00_optim_states.pt")], RANK="1")
        run(["cat", m.path("f1")], RANK="0", WORLD_SIZE="2")
        run(["cat", m.path("f1")])
        run(["sh", "-c", f"exec 9<>{m.path('f0')}"], RANK="0")
        got = reads(m)
        assert got == {
            0: {"own_opens": 1, "own_bytes": size,
                "foreign_opens": 1, "foreign_bytes": size,
                "unknown_opens": 0, "unknown_bytes": 0},
            1: {"own_opens": 2, "own_bytes": 2 * size,
                "foreign_opens": 1, "foreign_bytes": size,
                "unknown_opens": 2, "unknown_bytes": 18},
        }, (stage, got)
        said = m.ctl("status", m.mnt)
        assert "opened own" in said and "3 (300 KiB)" in said, said
        m.remount()  # counted since the mount began
        assert reads(m) == {}


@ck.mounted(modes=("auto",))
def counters_have_a_bound_and_come_in_pages(m):
    save(m.path("f"), RANK="0")
    for n in range(200):
        run(["cat", m.path("f")], RANK=str(7 * n + 1))
    rows = m.status()["reads"]
    assert [row["rank"] for row in rows] == [7 * n + 1 for n in range(200)]
    assert all(row["foreign_opens"] == 1 for row in rows)


if __name__ == "__main__":
    ck.main()
