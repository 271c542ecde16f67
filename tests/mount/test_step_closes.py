"""structure=refuse, where the bytes of a step and the close that would be told
do not come together: other descriptors, others who write, mappings, segments, a
daemon that is killed."""
import errno
import os
import subprocess

import ckptest as ck
import ckptgpu as gpu
import segments
from ckptest import fails, get, same
from steps import figures
from trainers import EUCLEAN, REFUSED, good_steps, told
from trainers import hf, single_safetensors, single_torch


@ck.mounted("structure=refuse")
def a_child_that_closes_half_a_step_is_not_told_of(m):
    with open(m.path("step_1.pt"), "wb") as f:
        whole = single_torch(1)[""]
        f.write(whole[:700])
        f.flush()
        os.fsync(f.fileno())
        ck.Child(lambda: None).result()
        f.write(whole[700:])
    seen = figures(m)
    assert seen["broken"] == seen["refused"] == 0, seen
    fails(errno.ENODATA, os.getxattr, m.path("step_1.pt"), REFUSED)
    same(get(m.path("step_1.pt")), whole)


@ck.mounted("structure=refuse")
def a_close_that_ends_nothing_is_not_told_of(m):
    """Whoever closes it goes on with another descriptor, or his parent does: a
    shell moves the one that it has opened to its place, and closes that."""
    run = good_steps(m, "megatron")
    tracker = os.path.join(run, "latest_checkpointed_iteration.txt")
    said = get(tracker)
    for text in (b"1\n", b"2\n", b"0000001\n"):
        ck.sh("bash", "-ec", f"echo {text.decode().strip()} > {tracker}")
        same(get(tracker), text)
    ck.sh("bash", "-ec", f"(printf 0; /bin/true; printf 2) > {tracker}")
    same(get(tracker), b"02")
    # By another name, and in the middle of an exec, which closes it.
    os.link(tracker, os.path.join(run, "counter"))
    ck.sh("bash", "-ec", f"echo 1 > {run}/counter")
    same(get(tracker), b"1\n")
    os.unlink(os.path.join(run, "counter"))
    whole = single_torch(1)[""]
    with open(m.path("step_1.pt"), "wb", buffering=0) as f:
        f.write(whole[:700])
        assert not os.get_inheritable(f.fileno())
        os.system("true")
        f.write(whole[700:])
    for path, text in ((m.path("step_1.pt"), whole), (tracker, said)):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for half in (text[:len(text) // 2], text[len(text) // 2:]):
            os.close(os.dup(fd))
            ck.write_all(fd, half)
        os.close(fd)
        same(get(path), text)
        fails(errno.ENODATA, os.getxattr, path, REFUSED)
    seen = figures(m)
    assert seen["broken"] == seen["missing"] == seen["refused"] == 0, seen
    # The last one is told, whatever is open to read.
    m.expected.append("not published")
    with open(tracker, "rb"):
        fd = os.open(tracker, os.O_WRONLY | os.O_TRUNC)
        other = os.dup(fd)
        os.write(fd, b"9")
        os.close(fd)
        fails(EUCLEAN, os.close, other)
    same(get(tracker), said)


@ck.mounted("structure=refuse", modes=("auto",))
def the_same_file_of_another_mount_is_another_one(m):
    """It has the same number there, and the same name."""
    other = ck.Mount(os.path.join(m.base, "other")).start()
    try:
        files = []
        m.expected.append("not published")
        for mount in (m, other):
            run = os.path.join(mount.mnt, "deepspeed")
            good_steps(mount, "deepspeed")
            files.append(os.path.join(run, "latest"))
        fd = os.open(files[1], os.O_WRONLY)
        same(os.fstat(fd).st_ino, os.stat(files[0]).st_ino)
        fails(EUCLEAN, ck.put, files[0], b"global_step9")
        os.close(fd)
    finally:
        other.stop()


@ck.mounted("structure=refuse")
def what_a_mapping_has_is_there_when_a_name_is_given(m):
    """Also where the kernel has it still: without passthrough."""
    whole = hf(1)
    os.mkdir(m.path("tmp"))
    maps = []
    for name, text in whole.items():
        path = m.path("tmp", name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, len(text))
        maps.append(ck.BareMap(fd, len(text)))
        os.close(fd)
        maps[-1].write(0, text)
    os.rename(m.path("tmp"), m.path("step_1"))
    for name, text in whole.items():
        same(get(m.path("step_1", name)), text)
    # What is not there is missed as ever.
    os.mkdir(m.path("tmp"))
    path = m.path("tmp", max(whole))
    ck.put(path, bytes(len(whole[max(whole)])))
    m.expected.append("not published")
    fails(EUCLEAN, os.rename, m.path("tmp"), m.path("step_2"))
    for mapped in maps:
        mapped.close()
    told(m, refused=1)


@ck.mounted("structure=refuse", modes=("auto",))
def a_save_by_segments_is_told_as_a_close_is(m):
    """The file is there, and stays as it is."""
    m.expected.append("stays as it is")
    whole = single_safetensors(1)[""]
    client = segments.Client(m.mnt)

    def commit(name, content):
        """In a segment of its own: no save is waited for here."""
        signature = b"%d" % len(client.mapped)
        segment = client.acquire(signature, len(content))
        segment.memory[:] = content
        segment.commit(m.mnt, name)
        same(get(m.path(name)), content)
        return segment.refused
    same(commit("model_step_1.safetensors", whole), 0)
    same(commit("model_step_2.safetensors", b"\0" * len(whole)), 1)
    path = m.path("model_step_2.safetensors")
    assert "it is damaged" in os.getxattr(path, REFUSED).decode()
    told(m, refused=1)  # behind the commit: not of what is saved again by then
    same(commit("notes.safetensors", b"\0" * len(whole)), 0)
    same(commit("model_step_2.safetensors", whole), 0)
    fails(errno.ENODATA, os.getxattr, path, REFUSED)
    client.close()
    # The library says so, when the file is there.
    saver = gpu.Ckpt()
    a, b = gpu.Memory(b"a" * 4000), gpu.Memory(b"b" * 500)
    for n in (1, 2):
        saver.save(m.path(f"step_{n}.safetensors"), {"a": a, "b": b})
    path = m.path("step_3.safetensors")
    fails(EUCLEAN, saver.save, path, {"b": b})
    same(saver.load(path), {"b": b"b" * 500})
    assert "is gone (a)" in os.getxattr(path, REFUSED).decode()
    told(m, refused=2)
    saver.save(path, {"a": a, "b": b})
    fails(errno.ENODATA, os.getxattr, path, REFUSED)
    assert saver.counters().plain_saves == 0
    saver.close()
    told(m, refused=2)


# --- what a killed daemon leaves ---

@ck.mounted("structure=refuse")
def what_was_open_when_the_daemon_was_killed_is_looked_at(m):
    """The close that would have been told never comes."""
    m.expected += ["not published", "stays as it is"]
    run = good_steps(m, "deepspeed")
    latest = os.path.join(run, "latest")
    os.mkdir(m.path("new"))
    os.mkdir(m.path("new/global_step1"))
    half = single_torch(1)[""][:700]
    ck.put(m.path("latest"), b"new")
    m.flush()
    fds = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for path in
           (latest, m.path("step_1.pt"), m.path("new/latest"),
            m.path("latest"))]
    for fd, text in zip(fds, (b"global_step9", half, b"global_step7", b"")):
        ck.write_all(fd, text)
    # Who has it from before keeps nothing of it in the order of closes.
    reader = open(latest, "rb")
    m.kill()
    for fd in fds:
        fails(errno.ENOTCONN, os.close, fd)
    m.start()
    same(get(latest), b"global_step2")
    assert "names global_step9, which is not there" in \
        os.getxattr(latest, REFUSED).decode()
    same(get(m.path("step_1.pt")), half)
    ck.until("it is told", lambda: figures(m)["broken"] == 1)
    assert "cut off" in os.getxattr(m.path("step_1.pt"), REFUSED).decode()
    same(get(m.path("new/latest")), b"global_step7", "it led nowhere before")
    same(get(m.path("latest")), b"new", "what was emptied")
    assert "it was emptied" in os.getxattr(m.path("latest"), REFUSED).decode()
    m.flush()
    reader.close()
    m.power_cut()
    m.start()
    same(get(latest), b"global_step2")
    assert "global_step9" in os.getxattr(latest, REFUSED).decode()


def hold_guard(m, name, content):
    """It looks at this file, and at nothing else before that is durable."""
    ck.put(m.path(name), content)
    ck.until("it has looked", lambda: m.status()["structure"]["checked"] == 1)


def save_again(m):
    """The guard comes to a file when its next save is half written."""
    whole = single_torch(1)[""]
    path = m.path("last.ckpt")
    hold_guard(m, "step_1.pt", whole)
    ck.put(path, whole)
    with open(path, "wb") as f:
        f.write(whole[:700])
        f.flush()
        seen = figures(m)
        assert seen["broken"] == seen["refused"] == 0, seen
        f.write(whole[700:])
    seen = told(m, checked=2)
    assert seen["broken"] == seen["refused"] == 0, seen
    fails(errno.ENODATA, os.getxattr, path, REFUSED)
    same(get(path), whole)
    return path, whole


@ck.mounted("debug_hold_drain,structure=refuse")
def a_file_that_is_saved_again_is_not_refused(m):
    m.expected.append("stays as it is")
    path, whole = save_again(m)
    fails(EUCLEAN, ck.put, path, whole[:-100])
    told(m, broken=1, refused=1)


@ck.mounted("debug_hold_drain")
def a_file_that_is_saved_again_is_not_called_damaged(m):
    path, whole = save_again(m)
    ck.put(path, whole[:-100])
    told(m, broken=1)
    ck.until("the log says it",
             lambda: m.log_text().count("it is damaged") == 1)


@ck.mounted("debug_hold_drain,structure=refuse")
def a_file_that_waits_for_its_bytes_is_not_refused(m):
    whole = single_safetensors(1)[""]
    hold_guard(m, "a_step_1.safetensors", whole)

    def made_first(path):
        ck.put(path, b"")
        ck.put(path, whole)

    def by_a_child(path):
        with open(path, "wb") as f:
            child = subprocess.Popen(["sh", "-c", "read go; cat"],
                                     stdin=subprocess.PIPE, stdout=f)
        child.communicate(b"go\n" + whole)
        assert child.returncode == 0, child.returncode

    def by_a_mapping(path):
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, len(whole))
        mapped = ck.BareMap(fd, len(whole))
        os.close(fd)
        mapped.write(0, whole)
        mapped.close()

    def by_two(path):
        fds = [os.open(path, os.O_WRONLY | os.O_CREAT) for _ in range(2)]
        for fd, at, end in zip(fds, (0, 700), (700, len(whole))):
            assert os.pwrite(fd, whole[at:end], at) == end - at
            os.close(fd)

    for i, write in enumerate((made_first, by_a_child, by_a_mapping, by_two)):
        write(m.path(f"step_{i}.safetensors"))
    seen = figures(m)
    assert seen["broken"] == seen["refused"] == 0, seen
    for i in range(4):
        path = m.path(f"step_{i}.safetensors")
        same(get(path), whole)
        fails(errno.ENODATA, os.getxattr, path, REFUSED)
    # Nobody came.
    ck.put(m.path("step_9.safetensors"), b"")
    seen = told(m, broken=1)
    assert "it has 0 bytes" in seen["last"], seen
    assert seen["refused"] == 0, seen


if __name__ == "__main__":
    ck.main()
