"""What is made of a host's facts: versions, architectures, clocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from orchestrator.hosts.check.cuda import runs_on, version_numbers
from orchestrator.hosts.check.judge import judge_clock, judge_sessions
from orchestrator.hosts.needs import CONSTRAINTS, lacking, payload_needs, read_requirements
from tests.conftest import REPO


def test_the_payload_is_tested_with_versions_that_it_says_it_works_with() -> None:
    pins = {pin.name: pin for pin in read_requirements(CONSTRAINTS.read_text())}
    for need in payload_needs():
        (version,) = [one.version for one in pins[need.name].specifier]
        assert need.specifier.contains(version)


def test_what_the_payload_needs_is_said_in_one_place() -> None:
    text = (REPO / "pyproject.toml").read_text()
    assert "torch>=" not in text
    assert "transformers>=" not in text
    assert "torch==2" not in (REPO / "scripts" / "setup.sh").read_text()


@pytest.mark.parametrize(
    ("need", "version", "python", "fits"),
    [
        ("torch>=2.8", "2.8.0+cu126", (3, 11, 2), True),
        ("torch>=2.8", "2.7.1", (3, 11, 2), False),
        ("torch>=2.8", "2.9.0.dev20250901+cu130", (3, 11, 2), True),
        ("torch>=2.8", None, (3, 11, 2), False),
        ("torch>=2.8", "built by hand", (3, 11, 2), False),
        ('x>=1; python_version >= "3.11"', None, (3, 10, 4), True),
        ('x>=1; python_version >= "3.11"', None, (3, 13, 0), False),
    ],
)
def test_a_need_is_judged_with_the_hosts_python(
    need: str, version: str | None, python: tuple[int, ...], fits: bool
) -> None:
    wanted = Requirement(need)
    assert (lacking([wanted], {wanted.name: version}, python) == []) is fits


def test_a_file_of_requirements_is_read_as_pip_reads_it() -> None:
    text = "# needs\n-r other.txt\n--index-url https://x\n\ntorch >= 2.8  # newest\nnumpy\n"
    assert [str(need) for need in read_requirements(text)] == ["torch>=2.8", "numpy"]
    with pytest.raises(ValueError, match=r"line 2: 'not a requirement' is no requirement"):
        read_requirements("numpy\nnot a requirement\n")


@pytest.mark.parametrize(
    ("capability", "archs", "runs"),
    [
        ((9, 0), ("sm_80", "sm_90"), True),
        ((8, 9), ("sm_80", "sm_90"), True),
        ((7, 5), ("sm_80", "sm_90"), False),
        ((9, 0), ("sm_80",), False),
        ((12, 0), ("sm_80", "compute_90"), True),
        ((12, 1), ("sm_120",), True),
        ((10, 3), ("sm_100a",), False),
        ((10, 0), ("sm_100a",), True),
        ((10, 3), ("sm_100f", "strange"), False),
        ((7, 0), ("compute_75",), False),
    ],
)
def test_a_torch_runs_on_the_gpus_that_it_has_code_for(
    capability: tuple[int, int], archs: tuple[str, ...], runs: bool
) -> None:
    assert runs_on(capability, archs) is runs


def test_drivers_are_compared_by_their_numbers() -> None:
    assert version_numbers("525.60.13") < version_numbers("525.105.17") < version_numbers("580.65.06")
    assert version_numbers("garbled") == ()


SECONDS = st.floats(0, 5)


@given(st.floats(-1e6, 1e6), SECONDS, SECONDS, SECONDS, SECONDS)
def test_the_offset_is_never_further_off_than_it_says(
    offset: float, there: float, start: float, looks: float, back: float
) -> None:
    sent = 1_800_000_000.0
    first = sent + there + start + offset
    clock = {"first": first, "last": first + looks, "elapsed": looks}
    finding, record = judge_clock(clock, sent, there + start + looks + back)
    assert abs(record["offset_s"] - offset) <= record["uncertainty_s"] + 0.01
    said = finding.severity != "ok"
    if said:
        assert abs(record["offset_s"]) > record["uncertainty_s"] - 0.01
    elif abs(offset) > 2 * max(1.0, record["uncertainty_s"]) + 0.01:
        raise AssertionError(f"an offset of {offset} went unsaid")


def test_a_clock_that_jumps_meanwhile_is_said() -> None:
    finding, _ = judge_clock({"first": 0.0, "last": 100.0, "elapsed": 2.0}, 0.0, 2.1)
    assert finding.severity == "warning"
    assert "jumped by" in finding.seen


@pytest.mark.parametrize(
    ("channels", "begin", "severities"),
    [
        (4, 10, ["ok"]),
        (2, 10, ["note"]),
        (1, 10, ["warning"]),
        (0, 10, ["warning"]),
        (4, 2, ["ok", "note"]),
        (None, 10, ["ok"]),
    ],
)
def test_the_limits_of_sshd_are_judged_by_what_orch_uses(
    channels: int | None, begin: int, severities: list[str]
) -> None:
    found = judge_sessions(channels, {"now": 1, "begin": begin, "most": 100})
    assert [finding.severity for finding in found] == severities
