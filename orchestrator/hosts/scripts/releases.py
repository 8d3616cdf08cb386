# needs release_state
"""Releases on a host: which is current, whether one may become it, and which may go.

What always holds: `current` is a symbolic link and changes by one rename; only a release that compiled and
passed its self-check under the interpreter at hand becomes current; the activation log is only appended to;
nothing that `current` or a live job names is removed. Switching and pruning hold one lock.
"""

YOUNG_SECONDS = 86400
LOCK_SECONDS = 30
LIVE = ("queued", "running")


def installed(workdir):
    folder = os.path.join(workdir, "releases")
    if not os.path.isdir(folder):
        return []
    return sorted(
        name for name in os.listdir(folder) if len(name) == 64 and os.path.isdir(os.path.join(folder, name))
    )


def activations(workdir):
    """(time, hash) of each activation, oldest first; a torn or foreign line is passed over."""
    entries = []
    with (
        contextlib.suppress(FileNotFoundError),
        open(os.path.join(workdir, "releases", "activations.log")) as log,
    ):
        for line in log:
            words = line.split()
            if len(words) == 2 and len(words[1]) == 64:
                with contextlib.suppress(ValueError):
                    entries.append((float(words[0]), words[1]))
    return entries


@contextlib.contextmanager
def locked(workdir):
    """Holds the lock of a host's releases; a file system that knows no locks goes without."""
    import fcntl

    with open(os.path.join(workdir, "releases", ".lock"), "a") as stream:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                    break
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
            if time.monotonic() > deadline:
                raise HostError(
                    "busy",
                    f"another push has held the lock for {LOCK_SECONDS} s",
                    stream.name,
                    hint="wait for the other push, or see who holds that file open",
                )
            time.sleep(0.05)
        yield


def activate(workdir, release, keep):
    """Makes a release current and removes those that nothing needs. Returns what was removed."""
    with locked(workdir):
        if not os.path.isdir(release_folder(workdir, release)):
            raise HostError("busy", f"release {release[:12]} was removed by another push meanwhile", release)
        before = current_release(workdir)
        link = os.path.join(workdir, f".current-{os.urandom(4).hex()}")
        os.symlink(os.path.join("releases", release), link)
        try:
            os.replace(link, os.path.join(workdir, "current"))
        except BaseException:
            remove(link)
            raise
        sync(workdir)
        log = activations(workdir)
        if before != release or not log or log[-1][1] != release:
            with open(os.path.join(workdir, "releases", "activations.log"), "a") as stream:
                stream.write(f"{time.time():.3f} {release}\n")
        return prune(workdir, keep)


def prune(workdir, keep):
    """Removes all but the last `keep` activated releases, `current`, and what live jobs pin."""
    have = installed(workdir)
    if len(have) <= keep:
        return []
    activated = {name: os.stat(release_folder(workdir, name)).st_mtime for name in have}
    activated.update((name, at) for at, name in activations(workdir) if name in activated)
    kept = set(sorted(have, key=activated.get)[-keep:]) | {current_release(workdir)}
    gone = []
    doomed = [name for name in have if name not in kept]
    live = pinned(workdir) if doomed else set()
    for name in doomed:
        if live is None or name in live:
            continue
        aside = os.path.join(workdir, "releases", temporary_name("pruned"))
        os.rename(release_folder(workdir, name), aside)
        remove(aside)
        gone.append(name)
    return gone


def pinned(workdir):
    """The releases that live jobs name; None if a young job's record cannot be read: then nothing may go."""
    jobs = os.path.join(workdir, "jobs")
    names = set()
    for job in os.listdir(jobs) if os.path.isdir(jobs) else []:
        if job.startswith(".") and not job.startswith(".new-"):
            continue  # the line that jobs wait in, and what is being removed; a launch that is under way counts
        folder = os.path.join(jobs, job)
        state = read_record(os.path.join(folder, "state.json"))
        young = time.time() - os.lstat(folder).st_mtime < YOUNG_SECONDS
        if not (state["state"] in LIVE if state and "state" in state else young):
            continue
        record = read_record(os.path.join(folder, "job.json"))
        if record is None or not isinstance(record.get("payload_hash"), str):
            if os.path.isdir(folder):
                return None
            continue
        names.add(record["payload_hash"])
    return names


def compile_all(folder, files):
    """Compiles every Python file with this interpreter; nothing is written."""
    import warnings

    findings = []
    warnings.simplefilter("ignore")
    for path in sorted(files):
        if path.endswith(".py"):
            with open(os.path.join(folder, path), "rb") as stream:
                source = stream.read()
            try:
                compile(source, path, "exec", dont_inherit=True)
            except (SyntaxError, ValueError) as error:
                line, column = getattr(error, "lineno", None) or 1, getattr(error, "offset", None) or 1
                findings.append(f"{path}:{line}:{column}: {getattr(error, 'msg', None) or error}")
    if findings:
        raise HostError(
            "payload",
            f"Python {sys.version.split()[0]} does not compile the payload: {'; '.join(findings)}",
            findings=findings,
            hint="mend these lines, then push again",
        )


def self_check(folder, env, limit):
    """Runs the payload's own self-check from a folder; returns its answer, or fails with its problems."""
    import subprocess

    path = os.pathsep.join([folder] + [p for p in (env.get("PYTHONPATH"), os.environ.get("PYTHONPATH")) if p])
    settings = dict(os.environ, **env)
    settings.update(PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1", PYTHONUTF8="1", PYTHONUNBUFFERED="1")
    argv = [sys.executable, "-m", "remote_payload", "selfcheck", "--json"]
    process = subprocess.Popen(
        argv,
        cwd=folder,
        env=settings,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired as error:
        raise HostError(
            "payload",
            f"the self-check did not end within {limit:g} s and was stopped; it printed: {tail(error.stderr or b'')}",
            hint="run `python -m remote_payload selfcheck` by hand on the host to see where it stands",
        ) from error
    finally:
        end_group(process)
    answer = last_object(out)
    if process.returncode == 0 and answer and answer.get("ok") is True:
        return answer
    raise refusal(answer, process.returncode, out, err)


def end_group(process):
    # Also after a normal end: a child that the self-check left behind would hold the GPU.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def tail(data, limit=1500):
    return data.decode("utf-8", "replace").strip()[-limit:] or "nothing"


def last_object(data):
    for line in reversed(data.decode("utf-8", "replace").splitlines()):
        if line.strip():
            try:
                value = json.loads(line)
            except ValueError:
                return None
            return value if isinstance(value, dict) else None
    return None


def last_words(code, printed):
    """What a program that broke off said: the error and the line of the payload first, then all of it."""
    import re

    places = re.findall(r'File "[^"]*?(remote_payload/[^"]+)", line (\d+)', printed)
    if "Traceback" not in printed or not places:
        return f"it ended with {code} and printed: {printed[-1500:]}"
    return f"{printed.splitlines()[-1]}, {places[-1][0]}:{places[-1][1]}\n{printed}"


def refusal(answer, code, out, err):
    """The failure of a self-check: a package that the host lacks is the host's matter, all else the payload's."""
    import re

    problems = [str(problem) for problem in (answer or {}).get("problems") or []]
    said = "; ".join(problems[:20]) or last_words(code, tail(out + err, 4000))
    absent = re.findall(r"No module named ['\"]([\w.]+)['\"]", "\n".join(problems) + tail(out + err, 4000))
    outside = sorted({name for name in absent if name.split(".")[0] != "remote_payload"})
    if outside:
        packages = " ".join(sorted({name.split(".")[0] for name in outside}))
        return HostError(
            "environment",
            f"the payload needs the Python module {', '.join(outside)}, which {sys.executable} does not have",
            modules=outside,
            hint="`orch hosts setup` of this host makes an environment that has it; or install it there "
            f"(`{sys.executable} -m pip install {packages}`), or point `python:` of this host in the inventory to one that has",
        )
    return HostError(
        "payload",
        f"the self-check failed: {said}",
        problems=problems,
        hint="the release that was current stays current; mend the payload, then push again",
    )


def prove(folder, files, env, limit):
    """Compiles and self-checks a filled folder, and notes in it that this interpreter has passed it."""
    compile_all(folder, files)
    before = set(listing(folder))
    answer = self_check(folder, env, limit)
    strange = sorted(set(listing(folder)) - before)
    if strange:
        raise HostError(
            "payload", f"the self-check wrote into its own release: {', '.join(strange)}", strange[0]
        )
    record = read_record(os.path.join(folder, "CHECKED.json")) or {}
    checked = dict(record.get("checked") or {})
    checked[interpreter()] = {"at": round(time.time(), 3), "selfcheck": answer}
    write_record(os.path.join(folder, "CHECKED.json"), dict(record, checked=checked))
    return answer
