# needs files
"""A key in authorized_keys for as long as a transfer takes to log in: it may do one thing, and then it is gone.

What always holds: the line is taken out when this program ends, however its client ended (its next sign of life
finds nobody), after `seconds` at the latest; sshd itself refuses it after a little more (`expiry-time`), should this
machine stop in between; and what is overdue is taken out by the next transfer. Other lines are never touched.
"""

import contextlib
import re
import stat
import time

MARKED = re.compile(r"orch-transfer-[0-9a-f]+-(\d+)$")
GRACE_S = 60


def run(arguments):
    path = os.path.realpath(expand("~/.ssh/authorized_keys"))
    if "remove" in arguments:
        return {"removed": take_out(path, lambda mark: mark.startswith(arguments["remove"] + "-"))}
    for name in ("SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), _stop)
    until = time.time() + arguments["seconds"]
    line = made_line(arguments, until + GRACE_S)
    take_out(path, lambda mark: int(MARKED.search(mark).group(1)) < time.time())
    try:
        put_in(path, line)
        say(b"ready\n")
        while time.time() < until:
            time.sleep(0.5)
            say(b".\n")
    finally:
        take_out(path, lambda mark: mark.startswith(arguments["mark"] + "-"))
    return None


def say(words):
    sys.stdout.buffer.write(words)
    sys.stdout.buffer.flush()


def made_line(arguments, expiry):
    command = arguments["command"].replace('"', '\\"')
    when = time.strftime("%Y%m%d%H%M%S", time.localtime(expiry))
    line = f'restrict,expiry-time="{when}",command="{command}" {arguments["public"]} {arguments["mark"]}-{expiry:.0f}'
    if "\n" in line or "\r" in line or not MARKED.search(line):
        raise HostError("usage", "not a line for authorized_keys")
    return line


def put_in(path, line):
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        os.makedirs(folder, mode=0o700)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "r+b") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - 1))
        ended = stream.read(1) in (b"", b"\n")
        stream.write((b"" if ended else b"\n") + line.encode() + b"\n")


def take_out(path, going):
    """Takes out our lines whose mark is `going`; a file that is left empty goes too. Returns how many they were."""
    while True:
        try:
            with open(path, "rb") as stream:
                before = os.fstat(stream.fileno())
                lines = stream.read().splitlines(keepends=True)
        except (FileNotFoundError, NotADirectoryError):
            return 0
        kept = [line for line in lines if not is_going(line, going)]
        if len(kept) == len(lines):
            return 0
        temporary = f"{path}.orch-{os.getpid()}"
        left = b"".join(kept).strip()
        try:
            if left:
                write_whole(temporary, b"".join(kept), stat.S_IMODE(before.st_mode))
            if not is_still(path, before):  # somebody else has just changed it
                continue
            if left:
                os.replace(temporary, path)
            else:
                os.unlink(path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        return len(lines) - len(kept)


def write_whole(path, data, mode):
    """Writes a file that is on the disk when this returns: people log in by what it will replace."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        error.filename = error.filename or path
        raise


def is_going(line, going):
    found = MARKED.search(line.decode("utf-8", "replace").rstrip("\r\n"))
    return found is not None and going(found.group())


def is_still(path, before):
    try:
        now = os.stat(path)
    except FileNotFoundError:
        return False
    return (before.st_ino, before.st_size, before.st_mtime_ns) == (now.st_ino, now.st_size, now.st_mtime_ns)
