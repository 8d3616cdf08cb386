# needs tree_state incoming
"""Content-addressed folders on a host: receive, verify, stamp, rename into place, tidy up.

What always holds: a folder under its final name is complete and was verified file by file; a folder that is
being filled is called `.tmp-<what>-<boot>-<pid>-<random>` and is removed on any failure, or by the next
caller once its process is gone; a file's stamp (size, mtime, ctime) stands for its hash only while it has
not changed since the hash was taken.
"""

import contextlib
import time

STALE_SECONDS = 3600


def write_record(path, record):
    temporary = f"{path}.{os.getpid()}.{os.urandom(4).hex()}"
    try:
        with open(temporary, "wb") as stream:
            stream.write((json.dumps(record, indent=1, sort_keys=True) + "\n").encode())
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        remove(temporary)
        raise


def here():
    """Where a process id means something: eight digits for this boot and this PID namespace."""
    import zlib

    marks = [os.uname().nodename]
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as stream:
        marks = [stream.read(), os.readlink("/proc/self/ns/pid")]
    return f"{zlib.crc32(''.join(marks).encode()):08x}"


def temporary_name(what):
    return f".tmp-{what[:16]}-{here()}-{os.getpid()}-{os.urandom(4).hex()}"


@contextlib.contextmanager
def staging(parent, what):
    """A new folder to fill; it is gone when the block ends, unless the block has renamed it."""
    os.makedirs(parent, exist_ok=True)
    sweep(parent)
    folder = os.path.join(parent, temporary_name(what))
    os.mkdir(folder)
    try:
        yield folder
    finally:
        remove(folder)


def sweep(parent):
    """Removes what dead callers have left: their process is gone, or nothing has moved there for an hour."""
    for name in os.listdir(parent):
        if not name.startswith(".tmp-"):
            continue
        parts = name.split("-")
        with contextlib.suppress(OSError):
            dead = len(parts) >= 4 and parts[-3] == here() and not alive(parts[-2])
            if dead or idle(os.path.join(parent, name)):
                remove(os.path.join(parent, name))


def alive(pid):
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        return True
    return True


def idle(folder):
    newest = max(
        [os.lstat(folder).st_mtime] + [os.lstat(os.path.join(folder, p)).st_mtime for p in listing(folder)]
    )
    return time.time() - newest > STALE_SECONDS


def remove(path):
    """Removes a file or a whole folder, if it is there."""
    import shutil

    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def sync(folder):
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_verified(folder, path, source, entry, kind):
    """Writes one file of a manifest, hashing what passes; anything but the promised bytes is a HostError."""
    import hashlib

    digest = hashlib.sha256()
    full = os.path.join(folder, path)
    os.makedirs(os.path.dirname(full), exist_ok=True)
    left = entry["size"]
    try:
        with open(full, "xb") as stream:
            while left:
                piece = source.read(min(PIECE, left))
                if not piece:
                    break
                stream.write(piece)
                digest.update(piece)
                left -= len(piece)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        error.filename = error.filename or full
        raise
    if left or digest.hexdigest() != entry["sha256"]:
        raise HostError(kind, f"{path} did not arrive as it was sent (size or SHA-256 differs)", path)
    os.chmod(full, 0o555 if entry.get("mode", 0) & 0o100 else 0o444)


def receive(folder, files, kind):
    """Fills a folder from the tar stream on stdin: exactly the files of the manifest, each verified."""
    import tarfile
    import zlib

    unsafe = [path for path in files if not safe_path(path)]
    if unsafe:
        raise HostError(kind, f"the manifest names a path outside its folder: {unsafe[0]!r}", unsafe[0])
    missing = set(files)
    try:
        with tarfile.open(fileobj=Incoming(), mode="r|*", bufsize=PIECE) as archive:
            for member in archive:
                if (
                    member.name not in missing
                    or not member.isreg()
                    or member.size != files[member.name]["size"]
                ):
                    raise HostError(
                        kind, f"the archive holds {member.name!r}, which its manifest does not", member.name
                    )
                missing.remove(member.name)
                write_verified(folder, member.name, archive.extractfile(member), files[member.name], kind)
    except (tarfile.TarError, zlib.error, EOFError) as error:
        raise HostError("cut", f"the stream ended early or is damaged: {error}") from error
    if missing:
        raise HostError("cut", f"the stream ended before {min(missing)}", min(missing))


def seal(folder, manifest):
    """Writes the manifest and the stamps of a folder that was filled and verified."""
    write_record(os.path.join(folder, "MANIFEST.json"), manifest)
    stamps = {path: stamp(os.path.join(folder, path)) for path in manifest["files"]}
    record = read_record(os.path.join(folder, "CHECKED.json")) or {}
    write_record(os.path.join(folder, "CHECKED.json"), dict(record, stamps=stamps))
    for base, _, _ in os.walk(folder):
        sync(base)


def publish(staged, final):
    """Renames a sealed folder to its final name; one that is damaged there is replaced.

    Returns "installed", "repaired", or "present" when somebody else was quicker (ours is discarded).
    """
    parent = os.path.dirname(final)
    try:
        os.rename(staged, final)
        outcome = "installed"
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        if os.path.isdir(final) and not damage(final, thorough=True):
            return "present"
        aside = os.path.join(parent, temporary_name("damaged"))
        os.rename(final, aside)
        try:
            os.rename(staged, final)
        except BaseException:
            os.rename(aside, final)
            raise
        remove(aside)
        outcome = "repaired"
    sync(parent)
    return outcome
