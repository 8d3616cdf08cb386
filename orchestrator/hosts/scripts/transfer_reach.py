"""Whether another host can be reached from this one by its ssh program; if so, all that ssh needs is laid ready.

What always holds: the folder is private and new, and holds a key that was made for one transfer, if any, and the
host keys to believe. Whoever uses it removes it, or has it removed by this (`leave`); what an interrupted one has left is removed by the
next.
"""

import contextlib
import re
import shutil
import socket
import tempfile
import time

CONNECT_S = 5.0
PREFIX = "orch-visit-"
STALE_VISIT_SECONDS = 3600


def run(arguments):
    base = private_base()
    if "leave" in arguments:
        if os.path.basename(arguments["leave"]).startswith(PREFIX):
            shutil.rmtree(os.path.join(base, os.path.basename(arguments["leave"])), ignore_errors=True)
        return {}
    if shutil.which("ssh") is None:
        raise HostError("unreachable", "the ssh program is not installed there")
    started = time.monotonic()
    where = f"{arguments['address']}:{arguments['port']}"
    try:
        socket.create_connection((arguments["address"], arguments["port"]), CONNECT_S).close()
    except OSError as error:
        raise HostError("unreachable", f"{where} does not answer it ({error.strerror or error})") from error
    seconds = time.monotonic() - started
    for name in os.listdir(base):
        path = os.path.join(base, name)
        with contextlib.suppress(OSError):
            if name.startswith(PREFIX) and time.time() - os.lstat(path).st_mtime > STALE_VISIT_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
    folder = tempfile.mkdtemp(prefix=PREFIX, dir=base)
    write_private(os.path.join(folder, "known_hosts"), arguments["known_hosts"])
    if arguments["key"]:
        write_private(os.path.join(folder, "key"), arguments["key"])
    return {"folder": folder, "seconds": seconds}


def private_base():
    """A folder for secrets, in memory if there is one, whose name ssh's options can hold as it is."""
    own = os.environ.get("XDG_RUNTIME_DIR", "")
    places = [own, "/dev/shm", tempfile.gettempdir()]  # noqa: S108 - the folder in it is new and private
    for place in places:
        if re.fullmatch(r"/[\w./+@-]+", place) and os.access(place, os.W_OK | os.X_OK):
            return place
    raise HostError("unreachable", "it has no folder for temporary files that ssh could be told of")


def write_private(path, text):
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
