"""How far something has come, as lines in a log and as steps of several hosts."""

from __future__ import annotations

import re
import sys

import pytest

from orchestrator.cli.progress import HostSteps, PlainView, Sending
from orchestrator.cli.watching import _Narrator
from orchestrator.launch import Handle, Observation
from remote_payload.protocol import Event, State


def step(phase: str, done: int, total: int, rate: float | None = None, drafter: str = "") -> Event:
    return Event(phase, drafter, done, total, rate)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def narrated(events: list[Event], capsys: pytest.CaptureFixture[str], drafters: int = 1) -> list[str]:
    handle = Handle("ct129", "j", "r")
    narrator = _Narrator(PlainView(Clock()), drafters)
    for event in events:
        narrator.look(Observation(handle, "running", State("running"), (event,)))
    return capsys.readouterr().err.splitlines()


def test_every_phase_is_one_line_with_its_end_figure(capsys: pytest.CaptureFixture[str]) -> None:
    events = [
        step("load_target", 0, 1),
        step("load_target", 1, 1),
        step("trajectories", 0, 35),
        step("trajectories", 20, 35, 14.0),
        step("trajectories", 35, 35, 15.0),
        step("evaluate", 0, 35, drafter="a"),
        step("evaluate", 35, 35, 20.0, "a"),
    ]
    assert narrated(events, capsys) == [
        "loading the target",
        "continuing the prompts  35/35 prompts  15.0/s",
        "drafting a (1/1 checkpoints)  35/35 prompts  20.0/s",
    ]


def test_prompts_that_were_all_kept_are_told_whole(capsys: pytest.CaptureFixture[str]) -> None:
    events = [step("trajectories", 0, 35), step("features", 0, 35), step("features", 35, 35)]
    assert narrated(events, capsys) == [
        "continuing the prompts  35/35 prompts, kept from before",
        "reading the target's features  35/35 prompts",
    ]


def test_a_long_phase_says_now_and_then_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    view = PlainView(clock)
    for second in range(25):
        clock.now = float(second)
        view.step("drafting", step("evaluate", second, 100))
    assert capsys.readouterr().err.splitlines() == ["drafting  10/100 prompts", "drafting  20/100 prompts"]


def test_the_start_is_not_silent_and_a_rejection_is_left_to_the_outcome(
    capsys: pytest.CaptureFixture[str],
) -> None:
    handle = Handle("ct129", "j", "r")
    narrator = _Narrator(PlainView(), 1)
    rejected = Event("rejected", "a", message="fc.weight is missing")
    for events in ((), (), (rejected,)):
        narrator.look(Observation(handle, "running", State("running"), events))
    assert capsys.readouterr().err == "starting the worker on ct129\n"


def test_steps_of_several_hosts_are_lines_that_name_them(capsys: pytest.CaptureFixture[str]) -> None:
    steps = HostSteps(quiet=False, live=False)
    steps.say("ct129", "sending 1.0 KiB")
    steps.say("ct200", "verifying")
    steps.show("ct129", lambda: print("ct129 installed"))
    out, err = capsys.readouterr()
    assert (out, err) == ("ct129 installed\n", "ct129: sending 1.0 KiB\nct200: verifying\n")


def test_on_a_terminal_results_still_go_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    steps = HostSteps(quiet=False, live=True)
    before = sys.stdout
    steps.say("ct129", "sending")
    steps.say("ct200", "sending")
    steps.show("ct129", lambda: print("ct129 installed"))
    steps.show("ct200", lambda: print("ct200 installed"))
    assert capsys.readouterr().out == "ct129 installed\nct200 installed\n"
    assert sys.stdout is before
    steps.close()


def test_on_a_terminal_a_long_step_stays_one_line() -> None:
    steps = HostSteps(quiet=False, live=True)
    steps.say("ct129", "$ uv pip install " + "x" * 300)
    assert steps._spinner is not None
    assert len(steps._spinner.status.plain) == len("ct129: ") + 72  # type: ignore[union-attr]
    steps.close()


def test_the_place_in_line_is_told_in_the_hosts_words_whenever_it_changes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    narrator = _Narrator(PlainView(Clock()), 1)
    for place, reason in ((2, "place 2 in line"), (2, "place 2 in line"), (1, "next in line\x1b[2J")):
        state = State("queued", reason=reason, queue_position=place)
        narrator.look(Observation(Handle("ct129", "j", "r"), "queued", state))
    assert capsys.readouterr().err.splitlines() == [
        "queued on ct129: place 2 in line",
        "queued on ct129: next in line\\x1b[2J",
    ]


def test_a_supervisor_without_a_sign_of_life_is_told_once_by_the_hosts_clock(
    capsys: pytest.CaptureFixture[str],
) -> None:
    narrator = _Narrator(PlainView(Clock()), 1)
    handle = Handle("ct129", "j", "r")
    for now, heartbeat in ((100.0, 95.0), (200.0, 95.0), (230.0, 95.0), (232.0, 231.0), (300.0, 231.0)):
        narrator.look(Observation(handle, "running", State("running", heartbeat=heartbeat), now=now))
    narrator.look(Observation(handle, "done", State("done", heartbeat=1.0), now=999.0))
    told = [line for line in capsys.readouterr().err.splitlines() if "no sign" in line]
    assert [re.findall(r"no sign for (.*?);", line) for line in told] == [["1 min 45 s"], ["1 min 09 s"]]


def test_bytes_on_their_way_are_told_now_and_then_with_rate_and_time_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    with Sending(quiet=False, live=False, clock=clock) as sending:
        for second in range(41):
            clock.now = float(second)
            sending("step_40", (200 + 20 * second) << 20, 1000 << 20)  # 200 MiB were there before
        sending("quick", 0, 100)
        clock.now += 0.4
        sending("quick", 99, 100)
    assert capsys.readouterr().err.splitlines() == [
        "sending step_40  42 %  420.0 MiB of 1000.0 MiB  20.0 MiB/s  29 s left",
        "sending step_40  62 %  620.0 MiB of 1000.0 MiB  20.0 MiB/s  19 s left",
        "sending step_40  82 %  820.0 MiB of 1000.0 MiB  20.0 MiB/s  9.0 s left",
    ]


def test_bytes_are_not_told_where_quiet_is_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Sending(quiet=True, clock=clock) as sending:
        for second in range(60):
            clock.now = float(second)
            sending("step_40", second, 60)
    assert capsys.readouterr().err == ""
