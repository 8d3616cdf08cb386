"""One scenario at a site: a person's `orch` commands, one fault on the way, and what that person does about it.

What always holds: the person knows what the commands say and nothing else, and does what their messages say is next;
a fault counts if the host's own log of requests had that phase for the last one at the moment of the strike.
"""

from __future__ import annotations

import random
import re
import shlex
import time
from dataclasses import dataclass

from orchestrator.hosts.watched import DEAD_AFTER_S
from tests.faults.goods import write_checkpoint, write_payload
from tests.faults.inspection import half_files, inspect_site, wrong_silence, wrong_words
from tests.faults.report import Report
from tests.faults.requests import CANCEL, FOLLOW, LAUNCH, PULL, PUSH, STAGE, Request
from tests.faults.site import HOST, Command, Site
from tests.faults.trips import Outage, Trip

__all__ = ["run_errand"]

_PATIENCE_S = 150.0
_TRIES = 6
_WITHIN_S = {PUSH: 0.7, STAGE: 0.7, LAUNCH: 0.25, FOLLOW: 2.0, CANCEL: 1.0, PULL: 0.6}
"""How long after a phase began a fault may strike at first, in seconds: less where that was too late, else more."""
_OF_SEVERAL = (PUSH, STAGE, FOLLOW)
_SOONER, _LATER, _LATEST = 0.6, 1.1, 4.0
_CHECKPOINT_BYTES = 2_000_000
_NEXT = re.compile(r"`orch ((?:push|runs (?:attach|cancel|pull|resume)) [^`]+)`")


@dataclass
class Errand:
    """What a person wants: the words of the command that is struck, and what there has to be in the end.

    `payload` (a folder) is then current on the host, `checkpoint` staged there; `rows` of each job are done, or fewer
    if it was `cancelled`.
    """

    words: list[str]
    payload: str
    checkpoint: str = ""
    rows: int = 0
    job_id: str = ""
    cancelled: bool = False


def run_errand(trip: Trip, site: Site, seed: int, phase: str, index: int) -> Report:
    """Plays a scenario and judges it."""
    rng = random.Random(f"{seed}/{trip.name}/{phase}/{index}")  # noqa: S311 - chance, not secrets
    report = Report(trip.name, index)
    before = site.recorded()
    errand = _prepare(site, phase, rng)
    site.requests.skip()
    command = site.start(*errand.words)
    outage = _strike(trip, site, command, phase, rng, index, report)
    if outage is not None:
        report.said.append(f"{outage.what} for {outage.seconds:.1f} s")
        time.sleep(outage.seconds)
        outage.mend()
    struck = command
    _carry_through(site, errand, command, phase, before, report)
    if phase == FOLLOW and outage is not None and outage.seconds > DEAD_AFTER_S:
        report.wrong_verdicts += wrong_silence(site, struck)
    inspect_site(site, errand, sorted(site.recorded() - before), report)
    return report


def _prepare(site: Site, phase: str, rng: random.Random) -> Errand:
    """Gets ready what the errand is about; to end a job, one has to run."""
    mark = f"{phase}-{rng.randrange(16**8):08x}"
    if phase == PUSH:
        site.tell_worker()
        payload = str(write_payload(site.root / mark, rng, rng.randint(800_000, 1_600_000)))
        return Errand(["push", HOST, "--payload", payload], payload)
    rows = rng.randint(15, 25) if phase == PULL else rng.randint(3, 7)  # of 100 KiB each
    pause = rng.uniform(0.4, 0.8) if phase in (FOLLOW, CANCEL) else rng.uniform(0.0, 0.05)
    site.tell_worker(f"rows={rows}", f"pause={pause:.3f}", "tail=0.2", "fat", *(["deaf"] * (phase == CANCEL)))
    checkpoint = str(write_checkpoint(site.root / mark, rng, _CHECKPOINT_BYTES))
    payload = str(site.payload)
    words = ["eval", "--ckpt", checkpoint, "--no-baseline", "--payload", payload, "--label", mark]
    errand = Errand(words, payload, checkpoint, rows)
    if phase == CANCEL:
        first = site.start(*words, "--detach")
        assert first.wait(_PATIENCE_S) == 0, first.stderr
        errand.job_id, errand.cancelled = first.stdout.strip(), True
        errand.words = ["runs", "cancel", errand.job_id, "--grace", "1"]
    return errand


def _strike(
    trip: Trip, site: Site, command: Command, phase: str, rng: random.Random, index: int, report: Report
) -> Outage | None:
    """Waits for the phase, then for a moment, and strikes."""
    within = site.within.setdefault(phase, _WITHIN_S[phase])
    moment = rng.uniform(0.0, within)
    at: Request | None = None
    while command.runs():
        at = site.requests.last(at)
        if _hits(at, command, phase):
            break
        time.sleep(0.01)
    time.sleep(moment)
    at = site.requests.last(at)
    outage = trip.strike(site, command, rng, index) if _hits(at, command, phase) else None
    within *= _SOONER if outage is None else _LATER
    site.within[phase] = min(within, _LATEST * _WITHIN_S[phase])
    if outage is not None:
        report.phase = phase
    return outage


def _hits(at: Request | None, command: Command, phase: str) -> bool:
    """Says whether a command is in a phase: those of several requests last until one of another phase is made, the
    others as long as their request.
    """
    if at is None or not command.runs():
        return False
    if command.words[:2] == ["runs", "cancel"]:
        return phase == CANCEL and at.phase == FOLLOW and at.runs()
    return at.phase == phase and (phase in _OF_SEVERAL or at.runs())


def _carry_through(
    site: Site, errand: Errand, command: Command, phase: str, before: set[str], report: Report
) -> None:
    """Does what a person does until it is done: what the message says is next, or the same again."""
    words = errand.words
    for _ in range(_TRIES):
        code = command.wait(_PATIENCE_S)
        new = sorted(site.recorded() - before)
        report.lost_results += half_files(site, new)
        if code == 0:
            if command.words[:2] != ["runs", "cancel"]:
                return
            words = ["runs", "pull", errand.job_id]  # it is ended, with proof; now what it measured
        elif code is None:
            report.wrong_verdicts.append(f"`orch {shlex.join(command.words)}` did not end: {command.stderr}")
            return
        elif code < 0:  # killed: nothing was said, but the record is there
            words = ["runs", "attach", new[0]] if new and not errand.cancelled else command.words
        else:
            report.said.append(f"exit code {code}: {command.stderr.strip()}")
            report.wrong_verdicts += wrong_words(site, command, code, phase)
            words = _next_words(command, errand)
        command = site.start(*words)
    command.wait(_PATIENCE_S)
    report.wrong_verdicts.append(f"it did not come to its end in {_TRIES} commands: {command.stderr}")


def _next_words(command: Command, errand: Errand) -> list[str]:
    """Returns the command that a message says is next; else the same command again."""
    found = _NEXT.search(command.stderr.rpartition("next: ")[2])
    if found is None:
        return command.words
    words = shlex.split(found[1])
    return [*words, "--payload", errand.payload] if words[0] == "push" else words
