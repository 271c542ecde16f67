"""deploy/systemd/ckptfs@.service, whose commands are read from the file and run
here one after the other, as systemd runs them; and the generator, which binds an
instance to the mounts of its store. systemd itself is not needed."""
import configparser
import contextlib
import fcntl
import os
import re
import shlex
import signal
import subprocess
import threading

import ckptest as ck
from ckptest import MIB, data, get, put, same

SYSTEMD = os.path.join(ck.HERE, "../../deploy/systemd")
DEPLOY = os.path.join(ck.HERE, "../../deploy")
PATH = ":".join((os.path.dirname(ck.CKPTFS), DEPLOY, "/usr/sbin:/usr/bin",
                 "/sbin:/bin"))


def unit():
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str
    parser.read(os.path.join(SYSTEMD, "ckptfs@.service"))
    return parser


class Service:
    """An instance of it, in the hands of the test in place of systemd."""

    def __init__(self, m, options=""):
        self.m = m
        self.service = unit()["Service"]
        self.variables = {"STORE": m.store, "OPTIONS": options}
        assert self.service["EnvironmentFile"] == "/etc/ckptfs/%i.conf"
        assert self.service["Environment"] == "OPTIONS="
        self.main = None

    def words(self, key):
        """systemd.service(5), "Command lines": what of it the unit uses."""
        found = []
        for word in shlex.split(self.service[key]):
            word = word.replace("%f", self.m.mnt)
            assert "%" not in word, f"{key}: {word}"
            whole = re.fullmatch(r"\$([A-Z]+)", word)
            if whole:  # as many words as it has, none perhaps
                found += self.variables[whole[1]].split()
                continue
            found.append(re.sub(r"\$\$|\$\{([A-Z]+)\}", lambda v:
                                self.variables[v[1]] if v[1] else "$", word))
        return found

    def begin(self, key, **more):
        return subprocess.Popen(self.words(key), stdin=subprocess.DEVNULL,
                                env={"PATH": PATH}, start_new_session=True,
                                **more)

    def run(self, key, code=0):
        done = subprocess.run(self.words(key), stdin=subprocess.DEVNULL,
                              env={"PATH": PATH}, capture_output=True,
                              text=True, timeout=2 * ck.WAIT_BOUND,
                              check=False)
        assert done.returncode == code, (key, done)
        return done.stderr

    def start(self):
        self.run("ExecStartPre")
        with open(self.m.log, "ab") as log:
            self.main = self.begin("ExecStart", stdout=log, stderr=log)
        ck.tell_guard("daemon", self.main.pid, self.m.mnt)
        self.m.proc = self.main  # so that the test's end ends it
        self.variables["MAINPID"] = str(self.main.pid)
        self.run("ExecStartPost")
        assert self.m.mnt in ck.mounts_under(self.m.mnt)

    def stop(self):
        """As systemd does meanwhile, the daemon's end is taken note of."""
        waiter = threading.Thread(target=self.main.wait)
        waiter.start()
        try:
            self.run("ExecStop")
            gone = not os.path.exists(f"/proc/{self.main.pid}")
        except BaseException:
            self.main.kill()
            raise
        finally:
            waiter.join()
        assert gone, "it was not waited for"
        self.ended()

    def ended(self):
        """It has, fine, and somebody else may have the store."""
        assert self.main.wait(ck.WAIT_BOUND) == 0, self.m.log_text()
        self.m.proc = None
        with open(os.path.join(self.m.store, "lock"), "rb") as f:
            fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB)
        assert ck.mounts_under(self.m.mnt) == []


@ck.mounted(modes=("auto",), start=False)
def it_starts_with_a_mount_and_stops_when_all_is_durable(m):
    ck.sh(ck.CKPTCTL, "init", m.store)
    os.rmdir(m.mnt)
    service = Service(m, "-o stage_size=1G,debug_hold_drain -o segments=off")
    service.start()
    for n in range(10):
        put(m.path(f"f{n}"), data(MIB, n))
    service.stop()
    service.variables["OPTIONS"] = ""
    service.start()
    for n in range(10):
        same(get(m.path(f"f{n}")), data(MIB, n), f"f{n}")
    service.stop()


@ck.mounted(modes=("auto",), start=False)
def a_store_whose_disk_is_away_is_not_made_anew(m):
    service = Service(m, "-o stage_size=1G")
    service.run("ExecStartPre")
    said = service.run("ExecStart", code=1)
    assert m.store in said and "is its disk mounted?" in said, said
    assert os.listdir(m.store) == []


@ck.mounted(modes=("auto",), start=False)
def its_start_ends_when_the_daemon_could_not_mount(m):
    service = Service(m)
    service.main = service.begin("ExecStart", stderr=subprocess.DEVNULL)
    assert service.main.wait(ck.WAIT_BOUND) == 1
    service.variables["MAINPID"] = str(service.main.pid)
    service.run("ExecStartPost", code=1)


@ck.mounted(modes=("auto",), start=False)
def a_daemon_that_was_killed_is_started_again(m):
    ck.sh(ck.CKPTCTL, "init", m.store)
    service = Service(m, "-o stage_size=1G,debug_hold_drain")
    service.start()
    put(m.path("f"), data(MIB))
    kept = os.open(m.path("f"), os.O_RDONLY)
    os.killpg(service.main.pid, signal.SIGKILL)
    assert service.main.wait(ck.WAIT_BOUND) == -signal.SIGKILL
    assert service.service["Restart"] == "on-failure"
    service.start()
    same(get(m.path("f")), data(MIB), "f")
    os.close(kept)
    service.stop()


@ck.mounted(modes=("auto",), start=False)
def a_busy_mount_is_ended_by_a_signal_and_all_is_durable(m):
    ck.sh(ck.CKPTCTL, "init", m.store)
    service = Service(m, "-o stage_size=1G,debug_hold_drain")
    service.start()
    put(m.path("f"), data(MIB))
    with contextlib.closing(open(m.path("f"), "rb")):
        said = service.run("ExecStop", code=32)
        assert "stays mounted, it is in use" in said, said
        assert m.mnt in ck.mounts_under(m.mnt)
        same(get(m.path("f")), data(MIB), "it goes on")
        # systemd goes on with this one, and never with SIGKILL.
        assert service.service["KillMode"] == "mixed"
        assert service.service["SendSIGKILL"] == "no"
        assert service.service["TimeoutStopSec"] == "infinity"
        assert "KillSignal" not in service.service
        os.kill(service.main.pid, signal.SIGTERM)
        service.ended()
    m.start()
    same(get(m.path("f")), data(MIB), "f")


def generated(m, **texts):
    """The drop-ins for these files of /etc/ckptfs."""
    conf, to = (os.path.join(m.base, name) for name in ("conf", "to"))
    os.makedirs(conf, exist_ok=True)
    for name, text in texts.items():
        put(os.path.join(conf, name + ".conf"), text.encode())
    done = subprocess.run(
        [os.path.join(SYSTEMD, "ckptfs-generator"), to, to + "2", to + "3"],
        env={"PATH": PATH, "CKPTFS_CONF_DIR": conf}, capture_output=True,
        text=True, timeout=ck.WAIT_BOUND, check=False)
    assert done.returncode == 0 and done.stderr == "", done
    assert not os.path.exists(to + "2") and not os.path.exists(to + "3")
    found = {}
    for folder in os.listdir(to) if os.path.isdir(to) else []:
        name = re.fullmatch(r"ckptfs@(.*)\.service\.d", folder)[1]
        text = get(os.path.join(to, folder, "50-store.conf")).decode()
        assert text.splitlines()[1] == "[Unit]", text
        found[name] = re.findall(r"^RequiresMountsFor=(.*)$", text, re.M)
    return found


@ck.mounted(modes=("auto",), start=False)
def an_instance_is_bound_to_the_mounts_of_its_store(m):
    assert generated(m) == {}
    os.symlink(m.store, os.path.join(m.base, "link"))
    got = generated(
        m, ckpt="STORE=/nowhere/store\n", relative="STORE=store\n",
        none="OPTIONS=-o stage_size=64G\n# STORE=/no\nXSTORE=/no\n",
        last="STORE=/no\n  STORE = /nowhere/last  \nOPTIONS=x\n",
        single="STORE='/nowhere/a \\b'\n",
        double='STORE="/nowhere/a \\"b\\" \\\\ 100%h"\n',
        escaped="STORE=/nowhere/a\\ b\n",
        link=f"STORE={m.base}/link/\n", none_of_it="STORE=$(touch x)\n")
    assert got == {
        "ckpt": ['"/nowhere/store"'], "last": ['"/nowhere/last"'],
        "single": [r'"/nowhere/a \\b"'],
        "double": [r'"/nowhere/a \"b\" \\ 100%%h"'],
        "escaped": ['"/nowhere/a b"'],
        "link": [f'"{m.base}/link/"', f'"{m.store}"']}, got


if __name__ == "__main__":
    ck.main()
