# needs gpu_look driver check_folder check_python
"""Everything that `orch hosts check` asks of a host, in one go. Nothing that it makes stays.

What always holds: each look fails by itself (`fault` in its own part of the answer) and hides no other; nothing is
judged here. `clock` holds two readings of the wall clock, near the start and near the end, and the seconds between.
"""

import re

DEVICES = ("/dev/nvidia0", "/dev/nvidiactl")


def run(arguments):
    """Looks at everything; the slow import of torch runs beside the rest."""
    first, ticks = time.time(), time.monotonic()
    os.environ.update(arguments["env"])
    packages = start_packages(arguments["packages"])
    try:
        answer = looks(arguments)
    except BaseException:
        end_process(packages)
        raise
    answer["packages"] = part(finish_packages, packages, arguments["import_s"])
    elapsed = time.monotonic() - ticks
    answer["clock"] = {"first": first, "last": time.time(), "elapsed": elapsed}
    return answer


def looks(arguments):
    """All looks but the one at the packages."""
    workdir = expand(arguments["workdir"])
    return {
        "python": list(sys.version_info[:3]),
        "executable": sys.executable,
        "platform": sys.platform,
        "machine": os.uname().machine,
        "shell": os.environ.get("SHELL", ""),
        "user": {"uid": os.geteuid(), "name": owner(os.getpid())},
        "startups": startups(),
        "folder": part(look_at_folder, workdir),
        "locks": part(look_at_locks, os.path.expanduser(arguments["lock_dir"] or lockdir.SHARED)),
        "gpus": part(gpu_answer, arguments),
        "driver": part(driver),
        "devices": [path for path in DEVICES if os.path.exists(path)],
    }


def part(look, *arguments):
    """One part of the answer, or why there is none."""
    try:
        return look(*arguments)
    except OSError as error:
        return {"fault": f"{error.strerror or error} ({error.filename})" if error.filename else str(error)}
    except Exception as error:
        return {"fault": f"{type(error).__name__}: {error}"}


def startups():
    """How many connections sshd lets come at once, as the title of its process says; None if it is not to be seen."""
    pid = os.getpid()
    for _ in range(16):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as stream:
                title = stream.read(4096).decode("utf-8", "replace")
            with open(f"/proc/{pid}/stat") as stream:
                pid = int(stream.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return None
        found = re.search(r"\[listener\] (\d+) of (\d+)-(\d+) startups", title)
        if found:
            now, begin, most = map(int, found.groups())
            return {"now": now, "begin": begin, "most": most}
    return None
