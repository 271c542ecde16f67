#!/usr/bin/env python3
"""Who replaces a name of the shared directory last: the rule, in all orders.

Several nodes replace, remove or make one NAME. Each of their calls is a few calls
of the cluster file system, and each of those is one step here. All orders of
steps are walked, with a node that between any two of them is forgotten, or
starts again without what it had in memory; a step may be as late as it likes.

A file that is to replace NAME is a ticket, G.NODE.N, in a folder that NAME has
for them; N tells those of one node apart.

  replace   list the tickets; make one's own, its G one more than the highest; the
            call returns. Nobody else's is touched: if this node dies, those have
            their turn
  complete  later, when the bytes are in it: take the ticket, that is, rename it
            to G.NODE.N! beside it, which nobody else renames. Too late: it was
            overtaken, and is over. Then list, settle with all lower ones, and
            rename it over NAME
  remove    list the tickets; when there are none, unlink NAME. Else make one that
            is taken from the first, settle with those listed, rename NAME to
            that, so that it is known to have gone, and remove both; the call
            returns
  put       of a file that is whole already: as a removal, but that it is renamed
            over NAME, by itself or as a ticket
  make      list the tickets. When there are some and no NAME, a removal came
            beside them: wait until they are gone, and list again. Then make
            NAME, which must not be there. A ticket that is made after that list
            is of a call that had not returned when this one began
  settle    revoke a ticket: rename it away. One that was taken has its place
            soon: wait for that
  start     what was taken goes on, from the list. If it is not there any more,
            it has its place: nothing is settled. NAME is not removed again
  forget    what the dead node had taken is completed for it as if it started, by
            one who does nothing else; its other tickets go

So a rename over NAME never fails because another node was quicker: ceph-fuse
16.2.15 hangs for ever in each later look-up of the destination of one that did.

Checked in each state: what NAME holds never goes from the bytes of a call to
those of one that had returned before that call began; no rename over NAME fails;
somebody can go on. At the end: nothing is pending, and NAME is what a call left
that no later call follows, but for those of a forgotten node.

Not walked: a dead node that goes on while another one completes for it, lists
that are not of one moment, and more: see README.md.

  replace_model.py CALLS...      a word for each node, of R (replace), U (remove),
                                 P (put) and C (make)
  replace_model.py --self-check  the rule holds, and each way of breaking it that
                                 is named here is found

Exit code: 0 nothing is wrong, 1 something is, 2 wrong usage.
"""
import sys
from collections import deque
from typing import NamedTuple

BROKEN = {
    "blind": "nobody waits for what was taken",
    "flat": "every G is the same",
    "direct": "the ticket itself is renamed over NAME",
    "kept": "who completes leaves the lower ones",
    "bare": "a removal has no ticket",
    "hasty": "a call revokes those that it finds",
    "trusting": "who starts again does not look for his ticket",
    "twice": "who starts again removes NAME once more",
    "plain": "who makes the name does not look for tickets",
    "late": "who makes the name looks for tickets after that",
    "loose": "what is whole is renamed over NAME beside its tickets",
}
EVENTS = ("", "forgotten", "starts again")  # once, between any two steps
SCENES = (("RR", "RU"), ("RU", "UR"), ("RU", "C"), ("R", "UC"), ("RP", "PR"),
          ("R", "R", "U"), ("R", "R", "R"), ("R", "U", "C"), ("R", "P", "U"))


class Ticket(NamedTuple):
    g: int
    node: int
    op: int  # the call that made it
    removes: bool = False


class Node(NamedTuple):
    calls: str  # what is left to do
    step: str = ""  # what the call does next; "": none runs
    op: int = 0
    seen: tuple = ()  # of the call: tickets that it found
    took: Ticket = None  # it is being completed; of a removal, too
    lower: tuple = None  # tickets to settle with first; None: not listed yet
    placed: bool = False  # and it knows that it has its place
    forgotten: bool = False


class State(NamedTuple):
    nodes: tuple
    tickets: frozenset = frozenset()
    taken: frozenset = frozenset()
    held: int = 0  # the call whose bytes NAME has; removed: minus the call
    returned: frozenset = frozenset()
    before: tuple = ()  # what had returned when the call at this place began
    lost: frozenset = frozenset()  # calls that need not have left anything
    eventful: bool = False  # a node was forgotten, or has started again


class Wrong(Exception):
    """What is wrong in a state."""


def is_later(s, op, than):
    """Had the one call returned before the other began?"""
    return op != 0 and abs(than) in s.before[abs(op) - 1]


def left_by(s, op, **what):
    """NAME has the bytes of this call now, or is removed by it."""
    ended = s.held < 0 or s.held in s.returned
    if ended and is_later(s, s.held, op):
        raise Wrong(f"call {op} is over call {s.held}, which is later")
    return s._replace(held=op, **what)


def with_node(s, i, node, **what):
    return s._replace(nodes=s.nodes[:i] + (node,) + s.nodes[i + 1:], **what)


def returns(s, i, **what):
    n = s.nodes[i]
    return with_node(s, i, n._replace(
        calls=n.calls[1:], step="", op=0, seen=()),
        returned=s.returned | {n.op}, **what)


class Rule:
    """The steps that are possible in a state; `broken` is of BROKEN, or ''."""

    def __init__(self, broken=""):
        self.broken = broken

    def call(self, s, i, n):
        """The next step of the call that runs, or of one that begins."""
        return getattr(self, n.step or "begin")(s, i, n)

    def begin(self, s, i, n):
        seen = tuple(sorted(s.tickets | s.taken))
        kind = n.calls[0]
        bare = not seen or self.broken == {"U": "bare", "P": "loose"}.get(kind)
        step = {"R": "make", "C": "create", "U": "unlink" if bare else "mark",
                "P": "rename" if bare else "mark"}[kind]
        return with_node(s, i, n._replace(
            step=step, op=len(s.before) + 1, seen=seen),
            before=s.before + (s.returned,))

    def ticket(self, i, n, removes=False):
        highest = max((t.g for t in n.seen), default=0)
        return Ticket(1 if self.broken == "flat" else highest + 1, i, n.op,
                      removes)

    def create(self, s, i, n):
        if s.held >= 0:  # it is there
            return returns(s, i, lost=s.lost | {n.op})
        there = s.tickets | s.taken
        if n.seen and self.broken not in ("plain", "late"):
            return None if there & set(n.seen) else with_node(
                s, i, n._replace(seen=tuple(sorted(there))))
        before = list(s.before)  # it has seen that NAME was removed
        before[n.op - 1] |= {abs(s.held)}
        s = left_by(s._replace(before=tuple(before)), n.op)
        if self.broken == "late":
            return with_node(s, i, n._replace(step="look"))
        return returns(s, i)

    def look(self, s, i, n):
        return None if s.tickets | s.taken else returns(s, i)

    def make(self, s, i, n):
        made = s.tickets | {self.ticket(i, n)}
        if self.broken == "hasty":
            made -= set(n.seen)
        return returns(s._replace(tickets=made), i)

    def mark(self, s, i, n):
        """Its ticket; this node completes nothing else meanwhile."""
        if n.took:
            return None
        mark = self.ticket(i, n, n.calls[0] == "U")
        return with_node(s, i, n._replace(
            step="wait", took=mark, lower=n.seen), taken=s.taken | {mark})

    def wait(self, s, i, n):
        return None if n.took else returns(s, i)

    def unlink(self, s, i, n):
        return returns(left_by(s, -n.op), i)

    def rename(self, s, i, n):
        return returns(left_by(s, n.op), i)

    def settle(self, s, i, n):
        """With the first of the lower ones; None: it has to wait."""
        t = n.lower[0]
        if t in s.taken and self.broken != "blind":
            return None
        return with_node(s, i, n._replace(lower=n.lower[1:]),
                         tickets=s.tickets - {t})

    def remove(self, s, i, n):
        """NAME goes, and then the removal's ticket."""
        if not n.placed:
            return with_node(left_by(s, -n.took.op), i, n._replace(placed=True))
        return with_node(s, i, n._replace(took=None, lower=None, placed=False),
                         taken=s.taken - {n.took})

    def place(self, s, i, n):
        """Rename it over NAME; and then it is known that it came."""
        t = n.took
        if n.placed:
            return with_node(s, i, n._replace(
                took=None, lower=None, placed=False))
        if t not in (s.tickets if self.broken == "direct" else s.taken):
            raise Wrong("a rename over NAME fails")
        return with_node(left_by(s, t.op), i, n._replace(placed=True),
                         tickets=s.tickets - {t}, taken=s.taken - {t})

    def lists(self, s, i, n):
        """What is to be settled with, if it has not its place already."""
        found = s.tickets | s.taken
        if n.took not in found and self.broken not in ("trusting", "direct"):
            return with_node(s, i, n._replace(took=None))
        if n.placed:
            return with_node(s, i, n._replace(lower=()))
        lower = tuple(sorted(t for t in found if t < n.took))
        return with_node(s, i, n._replace(
            lower=() if self.broken == "kept" else lower))

    def complete(self, s, i, n):
        """The next steps of what is completed, or could be."""
        if n.took and n.lower is None:
            yield "lists", self.lists(s, i, n)
        elif n.took:
            what = "settle" if n.lower else \
                "remove" if n.took.removes else "place"
            after = getattr(self, what)(s, i, n)
            if after:
                yield what + "s", after
        elif not n.forgotten:
            for t in s.tickets:
                if t.node == i and t.op in s.returned:
                    yield f"takes {t.op}", self.take(s, i, n, t)

    def take(self, s, i, n, t):
        if self.broken == "direct":
            return with_node(s, i, n._replace(took=t))
        return with_node(s, i, n._replace(took=t), tickets=s.tickets - {t},
                         taken=s.taken | {t})

    def is_noted(self, n):
        """That NAME went is known by its ticket."""
        return n.placed and n.took.removes and self.broken != "twice"

    def forget(self, s, i, n):
        """Who completes for it knows what is listed."""
        mine = {t for t in s.tickets if t.node == i}
        return with_node(s, i, n._replace(
            forgotten=True, lower=None, placed=self.is_noted(n)), eventful=True,
            tickets=s.tickets - mine,
            lost=s.lost | {t.op for t in mine} | {n.op})

    def start(self, s, i, n):
        """The call that runs never returns; a ticket that it has made goes."""
        mine = {t for t in s.tickets if n.op and t.op == n.op}
        return with_node(s, i, n._replace(
            calls=n.calls[1:] if n.op else n.calls, step="", op=0, seen=(),
            lower=None, placed=self.is_noted(n)), eventful=True,
            tickets=s.tickets - mine, lost=s.lost | {n.op})

    def steps(self, s, event):
        for i, n in enumerate(s.nodes):
            for what, after in self.complete(s, i, n):
                yield f"{i} {what}", after
            if n.forgotten:
                continue
            if n.calls:
                after = self.call(s, i, n)
                if after:
                    yield f"{i} {n.step or 'begins'} {n.calls[0]}", after
            if event and not s.eventful:
                yield f"{i} {event}", (
                    self.forget if event == "forgotten" else self.start)(
                        s, i, n)


def check_end(s):
    """Nobody can go on; is it the end, and right?"""
    if any((n.calls and not n.forgotten) or n.took for n in s.nodes):
        raise Wrong("something waits for ever")
    if s.tickets or s.taken:
        raise Wrong("something is pending for ever")
    for op in s.returned - s.lost:
        if s.held == 0 or is_later(s, op, s.held):
            raise Wrong(f"call {s.held} is left, and call {op} is later")


def walk(calls, event, broken=""):
    """How many states there are; Wrong has what is wrong, and the way to it."""
    rule = Rule(broken)
    first = State(tuple(Node(c) for c in calls))
    came, queue = {first: None}, deque([first])
    while queue:
        s = queue.popleft()
        try:
            ends = True
            for name, after in rule.steps(s, event):
                ends = ends and name.endswith(EVENTS[1:])
                if after not in came:
                    came[after] = (s, name)
                    queue.append(after)
            if ends:
                check_end(s)
        except Wrong as e:
            way = []
            while came[s]:
                s, name = came[s]
                way.append(name)
            raise Wrong(f"{e}; after: {', '.join(reversed(way))}") from None
    return len(came)


def count_states(calls):
    count = sum(walk(calls, event) for event in EVENTS)
    print(f"{' '.join(calls)}: {count} states, nothing is wrong", flush=True)


def find(broken):
    """What breaking the rule in this way leads to; None: to nothing wrong."""
    for calls in SCENES:
        for event in EVENTS:
            try:
                walk(calls, event, broken)
            except Wrong as e:
                return e
    return None


def self_check():
    for broken, how in BROKEN.items():
        found = find(broken)
        if not found:
            raise Wrong(f"nothing is found when {how}")
        print(f"found, when {how}: {found}", flush=True)
    for calls in SCENES:
        count_states(calls)


def main():
    calls = sys.argv[1:]
    if calls != ["--self-check"] and (not calls or "".join(calls).strip("RUPC")):
        print(__doc__)
        return 0 if calls == ["--help"] else 2
    try:
        if calls == ["--self-check"]:
            self_check()
        else:
            count_states(calls)
    except Wrong as e:
        print(f"FAIL: {e}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
