#!/usr/bin/env python3
"""history_selfcheck - the judge of the power cut accepts what is right and
names what is wrong.

The workload runs on an ordinary directory, which at any moment shows what a
perfect file system would. That tree fits the history; the same tree with one
thing wrong does not, and the violation has the right kind.
"""
import itertools
import sys
import tempfile

import workload
from history import DIR, Found, look

FAR = 1 << 40


class Case:
    """A history on a directory of its own; time goes on with every look."""

    def __init__(self):
        self.scratch = tempfile.TemporaryDirectory(prefix="history.")
        clock = itertools.count(1)
        self.w = workload.Work(self.scratch.name, lambda: next(clock))
        self.h = self.w.h

    def tree(self):
        return look(self.scratch.name)

    def kinds(self, found, k=None):
        return sorted({kind for kind, _ in self.h.violations(found, k)})


def file(content, ino=1):
    return Found(("file",), content, ino)


def the_whole_workload_fits_its_own_outcome():
    c = Case()
    wrong = []

    def fits():
        wrong.extend(c.h.violations(c.tree(), None))

    workload.run(c.w, fits, fits, fits)
    fits()
    assert not wrong, wrong
    assert len(c.h.closes) > 20 and len(c.h.renames) >= 6
    # and nothing at all fits a cut before the first promise
    assert c.kinds({}, 0) == []
    assert c.kinds({}) == ["lost"]


def every_promise_is_missed_when_it_is_broken():
    c = Case()
    c.w.put("f", b"old" * 3000, sync=True)
    c.w.put("f", b"new" * 3000, sync=True)
    c.w.put("unsynced", b"x" * 9000)
    found = c.tree()
    assert c.kinds(found) == []
    old, new = b"old" * 3000, b"new" * 3000
    for content, kind in ((old, "lost"), (b"", "torn"), (new[:-1], "torn"),
                          (new[:4096] + old[4096:], "torn"),
                          (new + b"\0", "torn")):
        assert c.kinds({**found, "f": file(content)}) == [kind], content[:9]
    assert c.kinds({"unsynced": found["unsynced"]}) == ["lost"]
    assert c.kinds({"f": found["f"]}) == [], "nobody synced the other"
    assert c.kinds({**found, "unsynced": file(b"")}) == ["torn"]
    assert c.kinds({**found, "g": file(b"")}) == ["foreign"]
    assert c.kinds({**found, "f": Found(DIR)}) == ["foreign"]
    broken = Found(None, error=OSError(5, "Input/output error"))
    assert c.kinds({**found, "f": broken}) == ["unreadable"]


def a_promise_counts_from_its_answer_on():
    c = Case()
    c.w.put("f", b"1", sync=True)
    step = next(s for s in c.h.steps if s.what.startswith("fsync"))
    assert c.kinds({}, step.answered - 1) == []
    assert c.kinds({}, step.answered) == ["lost"]
    assert c.kinds({"f": file(b"1")}, step.asked) == []
    assert c.kinds({"f": file(b"1")}, step.asked - 1) == ["torn"]


def a_file_that_is_still_open_is_not_there():
    c = Case()
    w = c.w.open("f").write(b"half")
    assert c.kinds({}) == []
    assert c.kinds(c.tree()) == ["torn"]
    w.sync().write(b" and more")
    assert c.kinds({"f": file(b"half")}) == []
    assert c.kinds({"f": file(b"half and more")}) == ["torn"]
    w.close()
    assert c.kinds({"f": file(b"half")}) == []
    assert c.kinds({"f": file(b"half and more")}) == []


def a_rename_is_whole_and_publishes():
    c = Case()
    c.w.mkdir("tmp")
    c.w.put("tmp/a", b"a")
    c.w.put("tmp/b", b"b")
    before = c.tree()
    step = c.h.begin("the rename, but it never answers")
    c.h.rename(step, "tmp", "done")
    after = {"done" + p[3:]: f for p, f in before.items()}
    assert c.kinds(before) == c.kinds(after) == c.kinds({}) == []
    half = {"tmp": before["tmp"], "tmp/a": before["tmp/a"],
            "done": after["done"], "done/b": after["done/b"]}
    assert c.kinds(half) == ["half"]
    c = Case()
    c.w.mkdir("tmp")
    c.w.put("tmp/a", b"a")
    before = c.tree()
    c.w.rename("tmp", "done")
    assert c.kinds(c.tree()) == []
    assert c.kinds(before) == ["lost"]
    assert c.kinds({"done": Found(DIR)}) == ["lost"]


def closes_become_durable_in_their_order():
    c = Case()
    for name in ("data", "tracker", "synced"):
        c.w.put(name, name.encode(), sync=name == "synced")
    found = c.tree()
    ends = [{"synced"}, {"data", "synced"}, {"data", "tracker", "synced"}]
    for end in ends:
        assert c.kinds({n: found[n] for n in end}) == []
    assert c.kinds({n: found[n] for n in ("tracker", "synced")}) == \
        ["overtaken"]
    c.w.put("late.tmp", b"latest")
    c.w.rename("late.tmp", "latest")
    found = c.tree()
    assert c.kinds(found) == []
    assert c.kinds({n: found[n] for n in ("latest", "synced")}) == \
        ["overtaken-by-publish"]
    c.w.unlink("data")  # what is removed need not have been durable
    assert c.kinds({n: found[n] for n in ("tracker", "latest", "synced")}) == []


def removed_names_of_a_synced_directory_stay_away():
    c = Case()
    c.w.put("f", b"f", sync=True)
    before = c.tree()
    c.w.unlink("f")
    assert c.kinds(before) == c.kinds({}) == []
    c.w.sync_dir("")
    assert c.kinds(before) == ["lost"]


def hard_links_are_one_file():
    c = Case()
    c.w.put("a", b"x")
    c.w.link("a", "b")
    assert c.kinds(c.tree()) == []
    assert c.kinds({"a": file(b"x", 1), "b": file(b"x", 2)}) == ["split"]


def closes_of_several_are_ordered_by_themselves():
    c = Case()
    for lane in ("a", "b"):
        c.w.lane = lane
        for i in range(2):
            c.w.put(f"{lane}{i}", f"{lane}{i}".encode())
    found = c.tree()
    assert c.kinds({n: found[n] for n in ("b0",)}) == []
    assert c.kinds({n: found[n] for n in ("a0", "b0", "b1")}) == []
    assert c.kinds({n: found[n] for n in ("a0", "b1")}) == ["overtaken"]


def what_is_changed_in_place_has_left_the_order():
    c = Case()
    c.w.put("first", b"1" * 9000)
    c.w.put("tracker", b"1")
    found = c.tree()
    assert c.kinds({"tracker": found["tracker"]}) == ["overtaken"]
    step = c.h.begin("open first again")
    c.h.leave(step, c.h.tree["first"][1])
    assert c.kinds({"tracker": found["tracker"]}) == []


def what_stays_open_may_be_found_as_it_stands():
    c = Case()
    w = c.w.open("log").write(b"12").sync().write(b"345")
    assert c.kinds({"log": file(b"123")}) == ["torn"]
    c.h.grow(c.h.begin("later"), w.fid, w.content, 2)
    w.write(b"6")
    for content, kinds in ((b"12", []), (b"123", []), (b"123456", []),
                           (b"1", ["torn"]), (b"12x", ["torn"]),
                           (b"1234567", ["torn"])):
        assert c.kinds({"log": file(content)}) == kinds, content
    assert c.kinds({}) == ["lost"]


def a_name_shows_nothing_from_before_it_was_given():
    c = Case()
    c.w.put("a", b"old", sync=True)
    c.w.put("a", b"new")
    c.w.link("a", "b")
    a, b = file(b"old"), file(b"old")
    assert c.kinds({"a": a}) == []
    assert c.kinds({"a": a, "b": b}) == ["older"]


def main():
    tests = [the_whole_workload_fits_its_own_outcome,
             every_promise_is_missed_when_it_is_broken,
             a_promise_counts_from_its_answer_on,
             a_file_that_is_still_open_is_not_there,
             a_rename_is_whole_and_publishes,
             closes_become_durable_in_their_order,
             removed_names_of_a_synced_directory_stay_away,
             hard_links_are_one_file,
             closes_of_several_are_ordered_by_themselves,
             what_is_changed_in_place_has_left_the_order,
             what_stays_open_may_be_found_as_it_stands,
             a_name_shows_nothing_from_before_it_was_given]
    failed = 0
    for test in tests:
        try:
            test()
            print(f"ok  {test.__name__}")
        except Exception as e:
            failed += 1
            at = e.__traceback__.tb_next
            print(f"FAILED  {test.__name__}, line {at.tb_lineno}: {e!r}")
    print(f"{len(tests) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
