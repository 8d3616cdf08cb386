"""Work on many hosts: one verdict each, bounded, in time; a dead host holds nobody up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing

import pytest

from orchestrator.errors import HostFailedError, LinkError
from orchestrator.hosts import fanout
from orchestrator.hosts.fanout import Verdict, fan_out
from orchestrator.hosts.local import LocalHost


class FakeHost(LocalHost):
    """A host that takes `seconds` to connect, or never does; it knows whether it was closed."""

    def __init__(self, name: str, seconds: float = 0.0, fault: Exception | None = None) -> None:
        super().__init__(name)
        self._seconds, self._fault = seconds, fault
        self.closed = threading.Event()

    def connect(self) -> None:
        if self.closed.wait(self._seconds) or self._fault:
            raise self._fault or LinkError(f"{self.name}: closed here")

    def close(self) -> None:
        self.closed.set()


class Park:
    """Hosts by name, and what happened on them."""

    def __init__(self, **special: FakeHost) -> None:
        self.special = special
        self.opened: dict[str, FakeHost] = {}
        self.now = self.most = 0
        self._lock = threading.Lock()

    def open(self, name: str) -> FakeHost:
        host = self.opened[name] = self.special.get(name) or FakeHost(name)
        return host

    def work(self, seconds: float = 0.0) -> Callable[[str, object], str]:
        def run(name: str, host: FakeHost) -> str:
            with self._lock:
                self.now += 1
                self.most = max(self.most, self.now)
            gone = host.closed.wait(seconds)
            with self._lock:
                self.now -= 1
            if gone:
                raise LinkError(f"{name}: closed here")
            return f"done {name}"

        return run


def names(count: int) -> list[str]:
    return [f"h{number}" for number in range(count)]


def by_host(verdicts: list[Verdict[str]]) -> dict[str, str]:
    return {v.host: v.result if v.error is None else v.error.message for v in verdicts}


def test_every_host_has_one_verdict_and_is_closed() -> None:
    park = Park(bad=FakeHost("bad", fault=LinkError("bad: refused")))
    verdicts = list(fan_out([*names(3), "bad", "h1"], park.open, park.work(), deadline_s=5))
    assert by_host(verdicts) == {"h0": "done h0", "h1": "done h1", "h2": "done h2", "bad": "bad: refused"}
    assert len(verdicts) == 4
    assert all(host.closed.is_set() for host in park.opened.values())


def test_no_more_work_at_once_than_allowed() -> None:
    park = Park()
    assert len(list(fan_out(names(20), park.open, park.work(0.05), deadline_s=5, at_once=3))) == 20
    assert park.most == 3


def test_verdicts_come_as_hosts_are_done_not_in_their_order() -> None:
    park = Park(h0=FakeHost("h0", seconds=1.0))
    verdicts = fan_out(names(3), park.open, park.work(), deadline_s=5)
    started = time.monotonic()
    first = [next(verdicts).host, next(verdicts).host]
    assert time.monotonic() - started < 0.8
    assert sorted(first) == ["h1", "h2"]
    assert next(verdicts).host == "h0"


def test_many_dead_hosts_do_not_hold_up_the_living(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "_PATIENCE_S", 0.3)
    dead = {f"dead{number}": FakeHost("", 30, LinkError("no answer")) for number in range(40)}
    park = Park(**dead)
    living = names(10)
    started = time.monotonic()
    with closing(fan_out([*dead, *living], park.open, park.work(), deadline_s=5, at_once=2)) as verdicts:
        for _ in living:
            assert next(verdicts).error is None
    # 16 connect at a time and each dead one lets the next in after 0.3 s; the living wait for that and no more
    assert time.monotonic() - started < 6


def test_a_host_that_is_not_done_in_time_is_cut_off_alone() -> None:
    park = Park()

    def work(name: str, host: FakeHost) -> str:
        return park.work(30 if name == "h1" else 0)(name, host)

    started = time.monotonic()
    verdicts = list(fan_out(names(3), park.open, work, deadline_s=0.5, at_once=1))
    assert time.monotonic() - started < 3
    found = by_host(verdicts)
    assert "not done after 0.5 s" in found.pop("h1")
    assert found == {"h0": "done h0", "h2": "done h2"}


def test_hosts_may_stay_open_for_what_comes_next() -> None:
    park = Park()
    list(fan_out(names(2), park.open, park.work(), deadline_s=5, keep_open=True))
    assert not any(host.closed.is_set() for host in park.opened.values())


def test_whoever_stops_listening_closes_all_at_once() -> None:
    park = Park(slow=FakeHost("slow", seconds=30))
    verdicts = fan_out(["quick", "slow", *names(3)], park.open, _quick_or_long(park), deadline_s=60)
    assert next(verdicts).host == "quick"
    started = time.monotonic()
    verdicts.close()
    assert time.monotonic() - started < 2
    assert all(host.closed.is_set() for host in park.opened.values())


def _quick_or_long(park: Park) -> Callable[[str, object], str]:
    return lambda name, host: park.work(0 if name == "quick" else 30)(name, host)


def test_a_fault_of_our_own_is_raised_not_reported_as_the_hosts() -> None:
    park = Park()

    def work(name: str, host: object) -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(fan_out(names(2), park.open, work, deadline_s=5))


def test_an_error_of_the_work_is_the_hosts_verdict() -> None:
    park = Park()

    def work(name: str, host: object) -> str:
        raise HostFailedError(f"{name}: the disk is full", "free some")

    (verdict,) = fan_out(["h0"], park.open, work, deadline_s=5)
    assert isinstance(verdict.error, HostFailedError)
    assert verdict.seconds >= 0


def test_a_host_that_cannot_even_be_resolved_has_its_verdict() -> None:
    def open_host(name: str) -> FakeHost:
        raise LinkError(f"{name}: the sandbox is down", "run `orch sandbox up`")

    (verdict,) = fan_out(["h0"], open_host, lambda *_: "", deadline_s=5)
    assert verdict.error is not None
    assert verdict.error.hint == "run `orch sandbox up`"
