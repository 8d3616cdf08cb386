# needs tree
"""Where environments of a work folder lie, which one is in use, and who is building one.

What always holds: an environment is whole only if `orch-env.json` is in it, which is written last; `env` is a link to a
whole one and changes by one rename; whoever builds holds the lock, and so does every program that it started.
"""

import fcntl

MARKER = "orch-env.json"


def envs(workdir):
    return os.path.join(workdir, "envs")


def env_folder(workdir, name):
    return os.path.join(envs(workdir), name)


def log_path(workdir, name):
    return os.path.join(envs(workdir), name + ".log")


def failure_path(workdir, name):
    return os.path.join(envs(workdir), name + ".failed.json")


def whole(workdir, name):
    """What is known of an environment that is whole and whose interpreter is still there; None for any other."""
    folder = env_folder(workdir, name)
    record = read_record(os.path.join(folder, MARKER))
    return record if record and os.access(os.path.join(folder, "bin", "python"), os.X_OK) else None


def sweep_envs(workdir):
    """Removes what killed builds have left. Only for whoever holds the lock."""
    for name in os.listdir(envs(workdir)):
        folder = env_folder(workdir, name)
        if os.path.isdir(folder) and not os.path.lexists(os.path.join(folder, MARKER)):
            remove(folder)


def in_use(workdir):
    """The name of the environment that `env` leads to, or None; something else under that name is a HostError."""
    link = os.path.join(workdir, "env")
    try:
        folder, _, name = os.readlink(link).partition("/")
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        folder, name = "", ""
    if folder != "envs" or not name or "/" in name:
        raise HostError("in_the_way", "not the link that orch keeps there", link)
    return name


def use(workdir, name):
    """Lets `env` lead to an environment."""
    link = os.path.join(workdir, f".env-{os.urandom(4).hex()}")
    os.symlink(os.path.join("envs", name), link)
    try:
        os.replace(link, os.path.join(workdir, "env"))
    except BaseException:
        remove(link)
        raise
    sync(workdir)


def take_lock(workdir, patience):
    """The lock of the environments as an open file, or None while another process has it."""
    descriptor = os.open(os.path.join(envs(workdir), ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    until = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(descriptor)
                return None
        except OSError as error:
            os.close(descriptor)
            raise HostError(
                "system",
                f"files cannot be locked in {envs(workdir)} ({error.strerror}), so two setups could spoil one another",
                hint="set `workdir:` to a folder on a local disk",
            ) from error
        else:
            return descriptor
        time.sleep(0.05)


def builder(workdir):
    """What whoever builds says of itself: name, pid, since, and where its output begins in the log."""
    return read_record(os.path.join(envs(workdir), ".lock")) or {}
