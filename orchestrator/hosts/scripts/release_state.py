# needs tree_state
"""Which release of a host is current, and which interpreters have proved one. Writes nothing."""


def release_folder(workdir, release):
    return os.path.join(workdir, "releases", release)


def current_release(workdir):
    """The hash that `current` points to, or None; something else under that name is a HostError."""
    link = os.path.join(workdir, "current")
    try:
        return os.path.basename(os.readlink(link))
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise HostError("in_the_way", "not the symbolic link that orch keeps there", link) from error


def checked_by(folder):
    """The interpreters under which a release has passed its self-check, with what it answered."""
    record = read_record(os.path.join(folder, "CHECKED.json")) or {}
    return record.get("checked") or {}


def interpreter():
    return f"{sys.version.split()[0]} {sys.executable}"
