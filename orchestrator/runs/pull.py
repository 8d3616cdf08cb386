"""Bringing a job's results home: one stream, verified file by file against the job's own manifest.

What always holds: a file takes its name in the run's folder only after its bytes were on this disk and their size and
hash, as they lie there, were right, so what is there under its name is sound; `pulled.json` says whether that is all of
it. Files that are here already are not sent again, nor is the beginning of one that was cut off (kept as `.NAME.pull`,
and taken up only where the host's file begins with the same bytes). Nothing that the host says chooses a file name. Who
pulls a run that somebody else is pulling says so and waits for them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.errors import HostFailedError, ResultsError, UsageError
from orchestrator.launch.base import ENDED
from orchestrator.runs.locks import locked
from orchestrator.runs.store import PULLED_SCHEMA, Pulled, Run
from remote_payload.durable import ProtocolError, file_sha256, naming, trim_torn_line, write_json
from remote_payload.protocol import MANIFEST_SCHEMA, RESULT_FILES, State, check_schema

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Sender", "pull"]

Sender = Callable[[Mapping[str, str]], Iterator[bytes]]
"""Asks the host for the results, less what the mapping says is here: name -> SHA-256, or -> SIZE:SHA-256 of a beginning."""

_HEADER = b'{"schema": "orch/send/'
_NOISE_LIMIT = 1 << 18
_LINE_LIMIT = 1 << 24
_FINAL = ("summary.json", "diagnosis.json")
"""What a job that goes on removes, and only its end writes."""
_MISSHAPEN = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What reading a line raises that no orch wrote."""


class _Stream:
    """Lines and counted bytes from pieces of any size."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._held = b""

    def _fill(self) -> bool:
        piece = next(self._pieces, None)
        if piece is None:
            return False
        self._held += piece
        return True

    def line(self) -> bytes:
        """Returns the next line without its end; raises EOFError where there is none."""
        while b"\n" not in self._held:
            if len(self._held) > _LINE_LIMIT or not self._fill():
                raise EOFError
        line, _, self._held = self._held.partition(b"\n")
        return line

    def take(self, count: int) -> Iterator[bytes]:
        """Yields exactly the next `count` bytes; raises EOFError if they do not come."""
        while count:
            if not self._held and not self._fill():
                raise EOFError
            piece, self._held = self._held[:count], self._held[count:]
            count -= len(piece)
            yield piece

    def finish(self) -> None:
        """Reads to the end, so that the sender's exit code is checked."""
        while self._fill():
            self._held = b""


def pull(
    run: Run, send: Sender, *, host: str, job_dir: str, report: Callable[[str], object] = lambda _text: None
) -> Pulled:
    """Brings a run's results home and records what was verified.

    Args:
        run: whose.
        send: asks the host for them.
        host, job_dir: where they come from, for the record.
        report: told, in a sentence, that somebody else is pulling this run and is waited for.

    Raises:
        UsageError: the job has not ended.
        ResultsError: something is missing or wrong; what is sound was kept, `pulled.json` lists the rest.
    """
    with locked(run.path, lambda: report(_waiting(run))):
        return _pull(run, send, host, job_dir)


def _waiting(run: Run) -> str:
    return (
        f"another orch is pulling run {run.job_id} into {run.path}; waiting for it "
        "(if you have stopped it with Ctrl-Z, `fg` lets it go on)"
    )


def _pull(run: Run, send: Sender, host: str, job_dir: str) -> Pulled:
    have = {name: file_sha256(run.path / name) for name in RESULT_FILES if (run.path / name).is_file()}
    # Of a file that is here and has begun to come once more, what is here was of no use: the job has gone on since.
    begun = {name: part for name in RESULT_FILES if (part := _Beginning.of(_temporary(run.path, name))).size}
    offered = {name: f"{part.size}:{part.sha256}" for name, part in begun.items()}
    stream = _Stream(send({**have, **offered}))
    header = _header(stream, run, host)
    if header.verdict not in ENDED:
        raise UsageError(
            f"run {run.job_id} is {header.verdict} on {host}: it has no complete results yet",
            f"wait for it: `orch runs attach {run.job_id}`",
        )
    listed = header.listed
    problems = ["the job wrote no manifest: it did not come to an orderly end"] if listed is None else []
    files = _Receiver(stream, run.path, listed, begun, problems).receive()
    for name, entry in (listed or {}).items():
        if name not in files and have.get(name) == entry["sha256"]:
            files[name] = entry
        elif name not in files and not any(problem.startswith(name) for problem in problems):
            problems.append(f"{name} did not come")
    if not problems or (listed is None and len(problems) == 1):  # all that there is has come
        _forget_earlier_end(run.path, files if listed is None else listed)
    _record_end(run, header)
    pulled = Pulled(host, job_dir, time.time(), not problems, files, problems)
    write_json(run.path / "pulled.json", {"schema": PULLED_SCHEMA, **asdict(pulled)})
    if problems:
        raise _incomplete(run, host, header.verdict, problems)
    for name in RESULT_FILES:
        _temporary(run.path, name).unlink(missing_ok=True)
    return pulled


class _Header(NamedTuple):
    """What comes before the files: how the job stands, its manifest if it wrote one, and the files that it lists."""

    verdict: str
    state: Any
    manifest: Mapping[str, Any] | None
    listed: dict[str, dict[str, Any]] | None


def _header(stream: _Stream, run: Run, host: str) -> _Header:
    try:
        header = json.loads(_first_line(stream))
        check_schema(header, "orch/send/1", f"{host}: results of {run.job_id}")
        manifest, listed = header["manifest"], None
        if manifest:
            check_schema(manifest, MANIFEST_SCHEMA, f"{host}: manifest of {run.job_id}")
            listed = {
                name: {"size": int(entry["size"]), "sha256": str(entry["sha256"])}
                for name, entry in manifest["files"].items()
            }
        return _Header(str(header["verdict"]), header["state"], manifest or None, listed)
    except EOFError as error:
        raise ResultsError(
            f"{host} sent no results for {run.job_id}", f"try again: `orch runs pull {run.job_id}`"
        ) from error
    except _MISSHAPEN as error:
        what = str(error) if isinstance(error, ValueError) else repr(error)
        raise ResultsError(f"{host}: the results of {run.job_id} cannot be read: {what}") from error


def _first_line(stream: _Stream) -> bytes:
    """Returns our first line, past what a login shell prints before it."""
    skipped = 0
    while skipped < _NOISE_LIMIT:
        line = stream.line()
        if line.startswith(_HEADER):
            return line
        skipped += len(line) + 1
    raise EOFError


def _known(name: object) -> str:
    if name not in RESULT_FILES:
        raise ValueError(f"an unexpected file {name!r}")
    return str(name)


def _temporary(folder: Path, name: str) -> Path:
    """What has come of a file that is on its way."""
    return folder / f".{name}.pull"


class _Beginning(NamedTuple):
    """The beginning of a file that was cut off: its length in bytes (0: nothing has come) and its hash."""

    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> _Beginning:
        return cls(path.stat().st_size, file_sha256(path)) if path.is_file() else cls(0, "")


class _Receiver:
    """Stores the files of a stream that are sound, and says in `problems` what is not."""

    def __init__(
        self,
        stream: _Stream,
        folder: Path,
        listed: Mapping[str, Any] | None,
        begun: Mapping[str, _Beginning],
        problems: list[str],
    ) -> None:
        self._stream, self._folder, self._listed = stream, folder, listed
        self._begun, self._problems = begun, problems

    def receive(self) -> dict[str, dict[str, Any]]:
        """Reads to the end. Returns what was stored."""
        stored: dict[str, dict[str, Any]] = {}
        try:
            while not (record := json.loads(self._stream.line())).get("end"):
                name = _known(record["file"])
                entry = self._store(name, int(record.get("from", 0)), int(record["size"]))
                if entry:
                    stored[name] = entry
            self._stream.finish()
        except EOFError:
            self._problems.append("the transfer ended early")
        except HostFailedError as error:
            self._problems.append(f"the transfer failed: {error.message}")
        except _MISSHAPEN as error:
            self._problems.append(f"the transfer cannot be read: {error}")
        return stored

    def _store(self, name: str, start: int, size: int) -> dict[str, Any] | None:
        """Takes `size` bytes, which go on from `start`. What has come when the stream breaks off is kept."""
        temporary, begun = _temporary(self._folder, name), self._begun.get(name)
        if size < 0:
            raise ValueError(f"{name} would have {size} bytes")
        if start and (begun is None or start != begun.size):
            raise ValueError(f"{name} goes on from byte {start}, which is not what is here of it")
        try:
            with naming(temporary), temporary.open("ab" if start else "wb") as out:
                for piece in self._stream.take(size):
                    out.write(piece)
                out.flush()
                os.fsync(out.fileno())
        except OSError:  # this disk is full, say: half a file would make that worse
            temporary.unlink(missing_ok=True)
            raise
        return self._check(name)

    def _check(self, name: str) -> dict[str, Any] | None:
        """Gives a file that came whole its name, or removes it: by what lies here, not by what passed."""
        temporary, listed = _temporary(self._folder, name), self._listed
        if listed is None and name != "worker.log":
            trim_torn_line(temporary)
        entry: dict[str, Any] = {"size": temporary.stat().st_size, "sha256": file_sha256(temporary)}
        if listed is not None and listed.get(name) != entry:
            what = "is not in the manifest" if name not in listed else "does not match its manifest"
            self._problems.append(f"{name} {what} (size {entry['size']}, sha256 {entry['sha256'][:12]}…)")
            temporary.unlink()
            return None
        temporary.replace(self._folder / name)
        return entry


def _forget_earlier_end(folder: Path, there: Mapping[str, Any]) -> None:
    """Removes the figures of an earlier end of the job, which it has removed itself when it went on."""
    for name in _FINAL:
        if name not in there:
            (folder / name).unlink(missing_ok=True)


def _record_end(run: Run, header: _Header) -> None:
    try:
        state = State.from_json(header.state) if header.state else None
    except ProtocolError as error:
        raise ResultsError(f"the state of {run.job_id} cannot be read: {error}") from error
    run.saw(header.verdict, state)
    if state is not None:
        write_json(run.path / "state.json", state.to_json())
    if header.manifest is not None:
        write_json(run.path / "MANIFEST.json", header.manifest)


def _incomplete(run: Run, host: str, verdict: str, problems: list[str]) -> ResultsError:
    again = f"orch runs resume {run.job_id}" if verdict == "lost" else f"orch runs pull {run.job_id}"
    return ResultsError(
        f"the results of {run.job_id} from {host} are not complete: {'; '.join(problems)}",
        f"what is sound was kept in {run.path}; next: `{again}`",
        run=run.job_id,
        problems=problems,
    )
