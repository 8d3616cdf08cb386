"""What every host-side script starts with: one JSON answer, failures classified where they happen.

What always holds: standard library only (an interpreter older than
`remote.OLDEST_PYTHON` never gets as far as compiling this); the answer is one line, the last of stdout,
and begins with ANSWER; an error is an answer too, with `kind`, `message`, `path` and (for a full disk) the
figures of the file system. A script that is told to stop (SIGTERM, SIGHUP) unwinds and cleans up.
"""

import errno
import json
import os
import signal
import sys

ANSWER = '{"orch": 1, '
_DISK = (errno.ENOSPC, errno.EDQUOT)
_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)


class HostError(Exception):
    """A failure that the client maps to an error of its own by `kind`."""

    def __init__(self, kind, message, path="", **more):
        Exception.__init__(self, message)
        self.record = dict(more, kind=kind, message=message, path=path)


def disk_figures(path):
    """Free and total bytes and free inodes of the file system that holds the nearest existing parent."""
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    figures = os.statvfs(path)
    return {
        "path": path,
        "free": figures.f_bavail * figures.f_frsize,
        "total": figures.f_blocks * figures.f_frsize,
        "inodes_free": figures.f_favail if figures.f_files else None,
    }


def classify(error, folder):
    """The record of an OSError: full disk, permission, something missing, or the system's own words."""
    path = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else folder
    kind = "system"
    more = {}
    if error.errno in _DISK:
        kind = "disk"
        more = {"disk": disk_figures(path or folder or "/"), "quota": error.errno == errno.EDQUOT}
    elif error.errno in _PERMISSION:
        kind = "permission"
    elif error.errno == errno.ENOENT:
        kind = "missing"
    elif error.errno in (errno.EEXIST, errno.ENOTDIR, errno.EISDIR):
        kind = "in_the_way"
    return dict(more, kind=kind, message=error.strerror or str(error), path=path)


def expand(path):
    """An absolute path; `~` is the home folder, and so is where a relative path starts."""
    path = os.path.expanduser(path)
    return os.path.normpath(path if os.path.isabs(path) else os.path.join(os.path.expanduser("~"), path))


def _stop(number, _frame):
    raise SystemExit(128 + number)


def main(run, arguments):
    """Runs a script and prints its answer."""
    for name in ("SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), _stop)
    folder = expand(arguments["workdir"]) if "workdir" in arguments else ""
    try:
        answer = {"answer": run(arguments)}
    except HostError as failure:
        answer = {"error": failure.record}
    except OSError as error:
        answer = {"error": classify(error, folder)}
    except Exception:
        import traceback

        answer = {"error": {"kind": "bug", "message": traceback.format_exc()[-3000:], "path": ""}}
    try:
        # A new line first: whatever a program started by this one has left on the line ends there.
        sys.stdout.write("\n" + ANSWER + json.dumps(answer)[1:] + "\n")
        sys.stdout.flush()
    except OSError:  # nobody listens any more; what was done on disk stands, and asking again finds it
        os._exit(1)


def main_stream(run, arguments):
    """Runs a script whose stdout is data: an error is the answer on stderr, with exit code 3."""
    folder = expand(arguments["workdir"]) if "workdir" in arguments else ""
    try:
        run(arguments)
        sys.stdout.buffer.flush()
    except HostError as failure:
        fail_stream(failure.record)
    except BrokenPipeError:
        os._exit(3)
    except OSError as error:
        fail_stream(classify(error, folder))


def fail_stream(record):
    sys.stderr.write("\n" + ANSWER + json.dumps({"error": record})[1:] + "\n")
    sys.exit(3)
