"""This machine as a host keeps the contract of `hosts.base.Host`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.errors import HostFailedError, LinkError
from orchestrator.hosts.local import LocalHost
from orchestrator.hosts.programs import PipeEnd


def python(source: str) -> list[str]:
    return [sys.executable, "-c", source]


@pytest.fixture
def host(tmp_path: Path) -> LocalHost:
    return LocalHost("here", tmp_path)


def test_exit_code_and_both_streams_come_back_apart(host: LocalHost) -> None:
    done = host.run(python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)"))
    assert (done.exit_code, done.stdout, done.error_text()) == (7, b"out\n", "err")


def test_arguments_reach_the_program_as_they_are(host: LocalHost) -> None:
    odd = ["a b", "$HOME", "*", "'\"", "new\nline", "ü", ""]
    done = host.run([*python("import json, sys; print(json.dumps(sys.argv[1:]))"), *odd])
    assert json.loads(done.stdout) == odd


def test_a_program_starts_in_the_home_folder_with_the_given_environment(
    host: LocalHost, tmp_path: Path
) -> None:
    done = host.run(
        python("import os; print(os.getcwd(), os.environ['HOME'], os.environ['WHO'])"), env={"WHO": "x y"}
    )
    assert done.stdout.decode().split(maxsplit=2) == [str(tmp_path), str(tmp_path), "x y\n"]


def test_megabytes_pass_in_both_directions_at_once(host: LocalHost) -> None:
    data = bytes(range(256)) * 16384
    echo = "import sys, shutil; shutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer); sys.stderr.write('e' * 3000000)"
    done = host.run(python(echo), stdin=(data[i : i + 70000] for i in range(0, len(data), 70000)))
    assert done.stdout == data
    assert len(done.stderr) == 3_000_000


def test_a_program_that_stops_reading_is_judged_by_its_exit_code(host: LocalHost) -> None:
    done = host.run(python("print('enough'); raise SystemExit(4)"), stdin=(b"x" * 65536 for _ in range(200)))
    assert (done.exit_code, done.stdout) == (4, b"enough\n")


def test_what_the_input_raises_comes_through_and_the_program_ends(host: LocalHost, tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"first"
        raise LinkError("the other link broke")

    with pytest.raises(LinkError, match="the other link broke"):
        host.run(python("import sys; sys.stdin.read(); open('ended', 'w')"), stdin=broken())
    assert not (tmp_path / "ended").exists()


def test_a_fault_of_the_input_is_not_taken_for_one_of_the_program(host: LocalHost) -> None:
    def missing() -> Iterator[bytes]:
        raise FileNotFoundError(2, "the input is gone")
        yield b""

    with pytest.raises(FileNotFoundError, match="the input is gone"):
        host.run(python("import sys; sys.stdin.read()"), stdin=missing())


def test_the_deadline_stops_the_program_and_its_children(host: LocalHost, tmp_path: Path) -> None:
    source = (
        "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c',"
        "\"import time; time.sleep(1.5); open('child', 'w')\"]); time.sleep(60)"
    )
    started = time.monotonic()
    with pytest.raises(LinkError, match=r"here: .* did not end within 0.5 s"):
        host.run(python(source), timeout=0.5)
    assert time.monotonic() - started < 5
    time.sleep(1.5)
    assert not (tmp_path / "child").exists()


def test_a_signal_is_no_exit_code(host: LocalHost) -> None:
    assert host.run(python("import os; os.kill(os.getpid(), 9)")).exit_code == -1


def test_a_program_that_is_not_there_exits_as_a_shell_says_it(host: LocalHost) -> None:
    assert host.run(["/no/such/program"]).exit_code == 127


def test_a_stream_comes_while_the_program_runs(host: LocalHost) -> None:
    source = "import sys, time\nfor i in range(3): print(i, flush=True); time.sleep(0.3)"
    started = time.monotonic()
    pieces = host.stream(python(source))
    first = next(pieces)
    assert time.monotonic() - started < 0.6
    assert first + b"".join(pieces) == b"0\n1\n2\n"


def test_a_failing_stream_raises_after_its_last_piece(host: LocalHost) -> None:
    pieces = host.stream(python("import sys; print('some'); sys.exit('it broke')"))
    came = []
    with pytest.raises(HostFailedError, match=r"here: .*exit code 1\): it broke"):
        came.extend(pieces)
    assert b"".join(came) == b"some\n"


def test_a_silent_stream_meets_its_limit(host: LocalHost) -> None:
    with pytest.raises(LinkError, match=r"here: nothing came for 0.3 s"):
        list(host.stream(python("import time; time.sleep(60)"), timeout=0.3))


# --------------------------------------------------------------------------- pipes between programs

COUNT = "import sys; print(sum(map(len, iter(lambda: sys.stdin.buffer.read(65536), b''))))"
ZEROS = "import sys\nfor _ in range({}): sys.stdout.buffer.write(bytes(1 << 20))"


def poured(
    host: LocalHost, source: str, sink: str, take: Callable[[int], bool] | None = None, silence: float = 20
) -> tuple[list[int], bytes]:
    """Pours one program's output into another's stdin. Returns the steps, and what the other said."""
    steps: list[int] = []

    def count(passed: int) -> bool:
        steps.append(passed)
        return take is None or take(sum(steps))

    def pieces() -> Iterator[bytes | PipeEnd]:
        yield b"head"
        for end in host.pipe(python(source), timeout=silence):
            end.count = count
            yield end

    return steps, host.run(python(sink), stdin=pieces(), timeout=30).stdout  # type: ignore[arg-type]


@pytest.mark.parametrize("spliced", [True, False])
def test_a_programs_output_is_poured_into_another(
    host: LocalHost, monkeypatch: pytest.MonkeyPatch, spliced: bool
) -> None:
    if not spliced:
        monkeypatch.delattr("os.splice", raising=False)  # as where the system has none
    steps, said = poured(host, ZEROS.format(20), COUNT)
    assert said == b"%d\n" % (4 + (20 << 20))
    assert sum(steps) == 20 << 20


def test_a_sink_that_stops_reading_ends_the_source_quietly(host: LocalHost) -> None:
    started = time.monotonic()
    steps, said = poured(host, ZEROS.format(100_000), "import sys; print(len(sys.stdin.buffer.read(1000)))")
    assert said == b"1000\n"
    assert sum(steps) < 50 << 20
    assert time.monotonic() - started < 10


def test_whoever_counts_can_end_it_and_that_is_no_failure_of_the_source(host: LocalHost) -> None:
    steps, said = poured(host, ZEROS.format(100_000), COUNT, take=lambda passed: passed < 5 << 20)
    assert said == b"%d\n" % (4 + sum(steps))
    assert sum(steps) < 20 << 20


def test_a_source_that_fails_or_falls_silent_is_an_error_of_its_own(host: LocalHost) -> None:
    with pytest.raises(HostFailedError, match=r"here: .*exit code 3.*why"):
        poured(host, "import sys; print('x' * 99); sys.stderr.write('why'); sys.exit(3)", COUNT)
    with pytest.raises(LinkError, match=r"nothing came for 0\.3 s"):
        poured(host, "import time; time.sleep(20)", COUNT, silence=0.3)
