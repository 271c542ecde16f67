"""ckptctl: exit codes 0 fine, 1 a problem was found, 2 wrong usage; JSON
that scripts can rely on; nothing but the result in a pipe."""
import json
import os
import re
import signal
import subprocess

import ckptest as ck
from ckptest import KIB, MIB, data, put
from frozen import stand_still

FIELDS = {"passthrough": bool, "logical_bytes": int, "physical_bytes": int,
          "staged_bytes": int, "stage_capacity_bytes": int, "draining": int,
          "failed": int, "files": int, "images": int, "chunks": int,
          "shared_bytes": int, "worker_restarts": int}


@ck.mounted()
def status_has_every_promised_field(m):
    s = m.status()
    for name, kind in FIELDS.items():
        assert isinstance(s[name], kind), (name, s.get(name))
    assert (s["files"], s["images"], s["failed"]) == (0, 0, 0), s
    put(m.path("a"), data(MIB))
    put(m.path("b"), data(MIB))
    put(m.path("tiny"), b"x" * 100)
    os.mkdir(m.path("d"))
    m.settle()
    s = m.status()
    assert (s["files"], s["images"], s["draining"]) == (3, 1, 0), s
    assert s["logical_bytes"] == 2 * MIB + 100, s
    assert MIB <= s["physical_bytes"] <= MIB + 256 * KIB, s
    assert s["shared_bytes"] == MIB, s
    assert s["stage_capacity_bytes"] > 0, s
    m.remount()
    after = m.status()
    for name in ("logical_bytes", "physical_bytes", "files", "images",
                 "chunks", "shared_bytes"):
        assert after[name] == s[name], (name, s, after)
    text = m.ctl("status", m.mnt)
    assert "\x1b" not in text and "\r" not in text, text
    again = json.loads(m.ctl("status", "--json", m.path("d")))
    assert again.keys() == after.keys(), again
    for name in ("store", "mountpoint", "logical_bytes", "files"):
        assert again.get(name) == after.get(name), (name, after, again)


@ck.mounted("debug_hold_drain")
def staged_bytes_are_counted_while_they_wait(m):
    put(m.path("a"), data(4 * MIB))
    put(m.path("b"), data(MIB))
    ck.until("both are closed", lambda: m.status()["draining"] == 2)
    s = m.status()
    assert s["logical_bytes"] == 5 * MIB and s["draining"] == 2, s
    assert s["staged_bytes"] == 5 * MIB and s["staged_files"] == 2, s
    assert 0 <= s["staged_unchanged_s"] < ck.WAIT_BOUND, s
    assert "5.0 MiB in 2 files, unchanged for" in m.ctl("status", m.mnt)
    m.settle()
    s = m.status()
    assert (s["draining"], s["staged_files"], s["staged_bytes"]) == (0, 0, 0)
    assert s["staged_unchanged_s"] is None, s


@ck.mounted()
def status_tells_of_what_the_stage_is_full(m):
    """The second of a series is staged in memory, and stays for readers."""
    size = 4 * MIB
    for n in (1, 2):
        with open(m.path(f"step_{n}.pt"), "wb") as f:
            s = m.status()
            if n == 2:
                assert s["stage_ahead_bytes"] >= size, s
            f.write(data(size, n))
        m.flush()
    # It is still open for the daemon until the kernel has told it of the close.
    ck.until("it is there for readers alone",
             lambda: m.status()["stage_clean_files"] == 1)
    s = m.status()
    assert s["stage_clean_bytes"] == size, s
    assert size <= s["stage_used_bytes"] <= s["stage_capacity_bytes"], s
    assert "4.0 MiB clean" in m.ctl("status", m.mnt)
    m.ctl("gc", m.mnt)
    assert m.status()["stage_clean_files"] == 0


@ck.mounted()
def flush_makes_one_file_a_directory_or_all_durable(m):
    os.makedirs(m.path("d", "e"))
    m.remount("debug_hold_drain")
    for name in ("f", "d/g", "d/e/h", "i"):
        put(m.path(name), data(100 * KIB, name))
    for asked, want in (("f", "f"), ("d", "fgh"), ("", "fghi")):
        m.ctl("flush", m.path(asked))
        for name in ("f", "d/g", "d/e/h", "i"):
            if name[-1] in want:
                assert m.state(m.path(name)) == "durable", (asked, name)
    m.ctl("flush", m.mnt)  # nothing to do is fine


@ck.mounted()
def du_tells_logical_from_physical(m):
    os.mkdir(m.path("d"))
    for name in "abc":
        put(m.path("d", name), data(MIB))
    m.flush()
    [found] = json.loads(m.ctl("du", "--json", "-s", m.path("d")))
    assert found["logical_bytes"] == 3 * MIB, found
    assert MIB <= found["physical_bytes"] < MIB + 256 * KIB, found
    assert m.ctl("du", m.path("d")).strip()


@ck.mounted()
def du_sorts_and_stops_at_a_depth(m):
    shared = data(MIB, "shared")
    for name, content in (("d/small/f", data(MIB, 1)),
                          ("d/large/f", data(3 * MIB, 2)),
                          ("d/copies/f", shared), ("d/copies/g", shared),
                          ("d/copies/h", shared), ("d/copies/i", shared)):
        os.makedirs(os.path.dirname(m.path(name)), exist_ok=True)
        put(m.path(name), content)
    m.flush()

    def du(*options):
        found = json.loads(m.ctl("du", "--json", *options, m.path("d")))
        text = m.ctl("du", *options, m.path("d")).splitlines()[1:]
        assert [line.split()[-1] for line in text] == [
            one["path"] for one in found], (text, found)
        return [os.path.relpath(one["path"], m.mnt) for one in found]
    # As du(1): what was named is the last line.
    assert du()[-1] == "d" and len(du()) == 4
    assert du("-s") == du("-d", "0") == du("--depth=0") == ["d"]
    assert sorted(du("-d1")) == sorted(du())
    assert du("--sort", "size") == ["d", "d/large", "d/small", "d/copies"] or \
        du("--sort", "size") == ["d", "d/large", "d/copies", "d/small"]
    assert du("--sort", "logical") == ["d", "d/copies", "d/large", "d/small"]
    assert du("--sort", "name") == ["d", "d/copies", "d/large", "d/small"]
    for wrong in (("-d", "-1"), ("-d", "x"), ("-d", ""), ("--sort", "age"),
                  ("--depth", "99999999999")):
        assert repr(wrong[1]) in m.ctl("du", *wrong, m.path("d"), code=2)
    for option in ("-d", "--depth", "--sort"):
        said = m.ctl("du", m.path("d"), option, code=2)
        assert f"'{option}' needs an argument" in said, said


@ck.mounted()
def what_du_may_not_see_is_in_its_json(m):
    os.mkdir(m.path("d"))
    os.chmod(m.path("d"), 0o755)
    os.mkdir(m.path("d", "secret"), 0o700)

    def look():
        done = subprocess.run([ck.CKPTCTL, "du", "--json", m.path("d")],
                              stdout=subprocess.PIPE, check=False,
                              timeout=ck.WAIT_BOUND)
        assert done.returncode == 1, done
        found = json.loads(done.stdout)
        assert {"path": m.path("d", "secret"),
                "error": "Permission denied"} in found, found
    ck.as_user(look)


HOSTILE = (b"esc\x1b]0;x\x07", b"csi\xc2\x9b2J", b"bad\xff\xfe", b"nl\n",
           b"back\\slash", b"octal\\377", "\u00e4\u20ac".encode(), b"\xed\xb3\xbf",
           b"cut\xe2\x82", b"quote\"'", b"\x7f")


def unescape(line):
    """What ckptctl(1) says of names for people, the other way round."""
    return re.sub(rb"\\\\|\\([0-7]{3})", lambda hit: bytes([int(hit[1], 8)])
                  if hit[1] else b"\\", line)


@ck.mounted()
def names_get_out_as_text_that_can_be_undone(m):
    folder = os.fsencode(m.path("d"))
    os.mkdir(folder)
    for name in HOSTILE:
        os.mkdir(os.path.join(folder, name))
        put(os.fsdecode(os.path.join(folder, name, b"f")), b"x")
    want = {os.path.join(folder, name) for name in HOSTILE} | {folder}
    done = subprocess.run([ck.CKPTCTL, "du", "-b", folder], check=True,
                          stdout=subprocess.PIPE, timeout=ck.WAIT_BOUND)
    lines = done.stdout.splitlines()[1:]
    done.stdout.decode()
    assert not re.search(rb"[\x00-\x09\x0b-\x1f\x7f]|\xc2[\x80-\x9f]",
                         done.stdout), done.stdout
    assert {unescape(line.split(None, 2)[2]) for line in lines} == want, lines
    done = subprocess.run([ck.CKPTCTL, "du", "--json", folder], check=True,
                          stdout=subprocess.PIPE, timeout=ck.WAIT_BOUND)
    done.stdout.decode()
    assert not re.search(rb"\x1b|\x7f|\xc2[\x80-\x9f]", done.stdout)
    assert {os.fsencode(one["path"])
            for one in json.loads(done.stdout)} == want, done.stdout
    # Of the file itself, of what is flushed, and what is complained of.
    for name in HOSTILE:
        path = os.path.join(folder, name, b"f")
        for argv in (["inspect"], ["flush"]):
            done = subprocess.run([ck.CKPTCTL, *argv, "--json", path],
                                  check=True, stdout=subprocess.PIPE,
                                  timeout=ck.WAIT_BOUND)
            found = json.loads(done.stdout.decode())
            said = found["flushed"][0] if "flushed" in found else \
                os.path.join(m.mnt, found["path"].lstrip("/"))
            assert os.fsencode(said) == path, (argv, done.stdout)
        done = subprocess.run([ck.CKPTCTL, "status", path + b"-no"],
                              check=False, stderr=subprocess.PIPE,
                              timeout=ck.WAIT_BOUND)
        said = done.stderr.removeprefix(b"ckptctl: ").rpartition(b": ")[0]
        assert done.returncode == 2 and unescape(said) == path + b"-no", done


@ck.mounted()
def inspect_shows_one_file(m):
    put(m.path("f"), data(2 * MIB))
    m.flush()
    found = json.loads(m.ctl("inspect", "--json", m.path("f")))
    assert found["state"] == "durable", found
    assert found["digest"] == ck.xattr(m.path("f"), "digest"), found
    assert m.ctl("inspect", m.path("f")).strip()


def safetensors(tensors):
    """Of (name, bytes) pairs, in this order."""
    header, at = {}, 0
    for name, content in tensors:
        header[name] = {"dtype": "U8", "shape": [len(content)],
                        "data_offsets": [at, at + len(content)]}
        at += len(content)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(
        content for _, content in tensors)


@ck.mounted()
def inspect_lists_tensors_and_compares_steps(m):
    frozen, old, new = data(4 * MIB), data(MIB, 1), data(MIB, 2)
    for step, w in (("1", old), ("2", new), ("3", new)):
        os.mkdir(m.path(step))
        put(m.path(step, "f.safetensors"),
            safetensors([("frozen", frozen), ("w", w)]))
        m.flush()
    found = json.loads(m.ctl("inspect", "--json", "--digest",
                             m.path("1", "f.safetensors")))
    assert found["format"] == "safetensors" and found["state"] == "durable"
    assert found["extents"], found
    assert [(t["name"], t["bytes"]) for t in found["tensors"]] == [
        ("frozen", 4 * MIB), ("w", MIB)], found
    step = json.loads(m.ctl("inspect", "--json", m.path("1")))
    assert [f["state"] for f in step["files"]] == ["durable"], step
    assert step["tensors"][1]["file"] == "f.safetensors"

    def diff(a, b):
        return json.loads(m.ctl("inspect", "--diff", "--json", m.path(a),
                                m.path(b)))
    d = diff("1", "2")
    assert [t["name"] for t in d["changed"]] == ["w"], d
    assert d["unchanged"] == 1 and not d["identical"], d
    # What is shared lies in one place, so it is not read to be compared.
    assert d["bytes_not_read"] == 4 * MIB, d
    d = diff("2", "3")
    assert d["identical"] and d["bytes_not_read"] == 5 * MIB, d
    assert "stale weights" in m.ctl("inspect", "--diff", m.path("2"),
                                    m.path("3"))


@ck.mounted()
def gc_and_fsck_have_json_too(m):
    put(m.path("f"), data(MIB))
    m.flush()
    os.unlink(m.path("f"))
    json.loads(m.ctl("gc", "--json", m.mnt))
    m.unmount()
    json.loads(m.fsck("--json"))
    json.loads(m.fsck("--json", "--scrub"))
    text = m.fsck("--scrub")
    assert "\r" not in text and "\x1b" not in text, "progress in a pipe"


@ck.mounted()
def exit_codes_tell_usage_from_problems(m):
    nowhere = os.path.join(m.base, "nowhere")
    put(m.path("f"), b"x")
    for code, *argv in (
            (0, "--help"), (2,), (2, "nonsense"), (2, "status"),
            (2, "status", m.mnt, m.mnt), (2, "status", "--nonsense", m.mnt),
            (2, "flush"), (2, "inspect"), (2, "fsck"), (2, "du"), (2, "gc"),
            (0, "status", m.mnt), (0, "flush", m.path("f")),
            (2, "status", nowhere), (2, "status", m.base),
            (2, "flush", m.path("no")), (2, "flush", m.base),
            (2, "inspect", m.path("no")), (2, "du", m.path("no")),
            (2, "gc", m.base), (2, "fsck", nowhere), (2, "fsck", m.base)):
        said = m.ctl(*argv, code=code)
        assert said.strip() or (code, argv[0]) == (0, "flush"), argv
    assert not os.path.exists(nowhere)
    m.unmount()
    m.ctl("status", m.mnt, code=2)  # not mounted any more
    m.ctl("flush", m.mnt, code=2)
    m.fsck()


@ck.mounted()
def wrong_usage_names_the_help_of_the_command(m):
    for wanted, *argv in (
            ("", "nonsense"), ("", ),
            ("status ", "status", "--nonsense"), ("flush ", "flush"),
            ("status ", "status", "--timeout", "x", m.mnt),
            ("plan ", "plan", m.mnt), ("fsck ", "fsck", "a", "b")):
        said = m.ctl(*argv, code=2)
        assert f"(see ckptctl {wanted}--help)" in said, (argv, said)


@ck.mounted()
def json_has_one_value_also_when_nothing_comes_of_it(m):
    nowhere = os.path.join(m.base, "nowhere")
    put(m.path("f"), b"x")
    for code, *argv in (
            (2,), (2, "nonsense"), (2, "status"), (2, "status", "--nonsense"),
            (2, "status", m.mnt, m.mnt), (2, "status", nowhere),
            (2, "status", m.base), (2, "status", m.store), (2, "flush"),
            (2, "inspect", nowhere), (2, "inspect", "--structure", m.mnt),
            (2, "du", "--sort", "age", m.mnt), (2, "du", m.base),
            (2, "gc", m.base), (2, "fsck", nowhere), (2, "fsck", m.mnt),
            (2, "scrub", m.mnt), (2, "rebuild", nowhere),
            (2, "plan", nowhere), (1, "plan", "--ranks", "1", m.mnt),
            (1, "plan", m.path("f")), (2, "du", "-d")):
        done = subprocess.run([ck.CKPTCTL, *argv, "--json"],
                              capture_output=True, text=True, check=False,
                              timeout=ck.WAIT_BOUND)
        assert done.returncode == code, (argv, done)
        error = json.loads(done.stdout)["error"]
        assert error["exit_code"] == code, (argv, done)
        assert error["message"] and done.stderr.startswith(
            "ckptctl: " + error["message"].split("\n")[0]), (argv, done)
        # And without --json nothing of it is on standard output.
        done = subprocess.run([ck.CKPTCTL, *argv], stdout=subprocess.PIPE,
                              check=False, timeout=ck.WAIT_BOUND)
        assert (done.returncode, done.stdout) == (code, b""), (argv, done)


@ck.mounted(modes=("auto",))
def help_names_a_command_or_all(m):
    assert m.ctl("help") == m.ctl("--help")
    assert m.ctl("help", "du") == m.ctl("du", "--help")
    assert "nonsense" in m.ctl("help", "nonsense", code=2)


@ck.mounted()
def a_dead_daemon_s_mount_is_named(m):
    os.stat(m.mnt)
    os.mkdir(m.path("d"))
    put(m.path("d", "f"), b"x")
    os.killpg(m.proc.pid, signal.SIGKILL)
    m.proc.wait(ck.WAIT_BOUND)
    for command in ("status", "flush", "inspect", "du", "gc", "fsck", "scrub",
                    "rebuild", "plan"):
        for path in (m.mnt, m.mnt + "/", m.path("d"), m.path("d", "f")):
            said = m.ctl(command, path, code=1)
            assert f"(umount {m.mnt})" in said, (command, path, said)
    said = m.ctl("inspect", "--diff", m.mnt, m.mnt, code=1)
    assert f"(umount {m.mnt})" in said, said
    # The kernel may remember the directory: the store's next mount asks it.
    done = subprocess.run([ck.CKPTFS, m.store, m.mnt], capture_output=True,
                          text=True, timeout=ck.WAIT_BOUND, check=False)
    assert done.returncode == 1, done
    assert "a daemon that died" in done.stderr, done
    assert f"(umount {m.mnt})" in done.stderr, done
    m.proc = None
    ck.sh("umount", m.mnt)
    m.start()
    m.unmount()


@ck.mounted(modes=("auto",))
def a_daemon_that_is_stopped_is_said_to_be(m):
    """Who asks for a status is let go, also by who reads what he prints."""
    try:
        stand_still(m)
        for options in ((), ("--json",)):
            done = subprocess.run(
                [ck.CKPTCTL, "status", "--timeout", "1", *options, m.mnt],
                capture_output=True, text=True, timeout=ck.WAIT_BOUND,
                check=False)
            assert done.returncode == 3, done
            assert "no answer for 1 s" in done.stderr, done
        error = json.loads(done.stdout)["error"]
        assert error["exit_code"] == 3 and "no answer" in error["message"]
    finally:
        os.killpg(m.proc.pid, signal.SIGCONT)
    assert m.status()["failed"] == 0
    for wrong in ("0", "x", "1x", "", "86401"):
        assert "--timeout" in ck.sh(ck.CKPTCTL, "status", "--timeout", wrong,
                                    m.mnt, code=2)


@ck.mounted()
def a_result_that_cannot_be_written_is_a_problem(m):
    put(m.path("f"), b"x")
    for argv in (("--help",), ("--version",), ("du", "--help"),
                 ("status", m.mnt), ("status", "--json", m.mnt),
                 ("inspect", m.path("f")), ("du", m.mnt), ("gc", m.mnt)):
        with open("/dev/full", "w", encoding="ascii") as full:
            done = subprocess.run([ck.CKPTCTL, *argv], stdout=full,
                                  stderr=subprocess.PIPE, text=True,
                                  timeout=ck.WAIT_BOUND, check=False)
        assert done.returncode == 1, (argv, done)
        assert "No space left on device" in done.stderr, (argv, done)


@ck.mounted()
def who_may_not_ask_is_told_so_with_exit_code_2(m):
    """2 is: this argument cannot be used for that. Nothing was found out."""
    put(m.path("f"), b"x", mode=0o600)
    os.mkdir(m.path("d"), 0o700)
    os.mkdir(m.path("d", "e"))

    def ask():
        for command in ("status", "flush", "inspect", "du", "gc"):
            said = m.ctl(command, m.path("d", "e"), code=2)
            assert "Permission denied" in said, (command, said)
        said = m.ctl("inspect", m.path("f"), code=2)
        assert m.path("f") in said, said
    ck.as_user(ask)


@ck.mounted("debug_hold_drain")
def nobody_else_can_read_the_bytes_of_a_store(m):
    """Images have no owner of their own: the mount is the only way in."""
    put(m.path("durable"), data(MIB, "d"), mode=0o600)
    m.flush()
    put(m.path("staged"), data(MIB, "s"), mode=0o600)
    put(m.path("small"), b"small", mode=0o600)

    def readable():
        return [os.path.join(folder, name)
                for top in ("images", "stage", "db")
                for folder, _, names in os.walk(os.path.join(m.store, top))
                for name in names
                if os.access(os.path.join(folder, name), os.R_OK)]
    assert readable()
    assert ck.as_user(readable) == []


if __name__ == "__main__":
    ck.main()
