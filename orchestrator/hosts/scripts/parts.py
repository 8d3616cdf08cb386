# needs tree chunks
"""What has arrived of files that are on their way, kept under their SHA-256 until they are whole.

What always holds: in `.parts`, beside what they will be part of, `<sha256>` holds the bytes, `<sha256>.map` says of each
chunk whether it is there, and its CRC-32, and `<sha256>.who` who has written. No part is ever taken for whole: what
is kept is read and checked against the map when a transfer begins, and the SHA-256 of all of it decides at the end.
Any number of senders may fill one part, since each writes the same bytes to the same places; the one that finishes
first takes it away under a lock, and a writer looks under that lock, before each chunk, whether it is still there.
"""

import fcntl

PARTS = ".parts"
MARK = struct.Struct("<II")  # in a map: is it there, its CRC-32
STALE_PART_SECONDS = 3 * 24 * 3600
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def places(arguments):
    """Where it is to be, and the folder of ours in which it is put together."""
    store = os.path.join(expand(arguments["workdir"]), arguments["under"])
    final = os.path.join(store, arguments["name"])
    return final, os.path.join(store, ".orch-transfers") if arguments["plain"] else store


def distinct(files):
    """The files of a manifest by content: [(sha256, size)], each once, in a fixed order."""
    return sorted({entry["sha256"]: entry["size"] for entry in files.values()}.items())


def check_digest(digest):
    if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise HostError("usage", f"not a SHA-256: {digest!r}")


def lock(descriptor, kind):
    try:
        fcntl.flock(descriptor, kind)
    except OSError as error:  # a file system without locks: what is finished is read once more anyway
        if error.errno not in _NO_LOCKS:
            raise


class Part:
    """One file that is on its way, of which anything may be there, or nothing."""

    def __init__(self, store, digest, size):
        check_digest(digest)
        self.digest, self.size = digest, size
        self.path = os.path.join(store, PARTS, digest)
        self.chunks = -(-size // CHUNK)

    def length(self, index):
        return min(CHUNK, self.size - index * CHUNK)

    def marks(self):
        try:
            with open(self.path + ".map", "rb") as stream:
                data = stream.read(self.chunks * MARK.size)
        except FileNotFoundError:
            return []
        return list(MARK.iter_unpack(data[: len(data) // MARK.size * MARK.size]))

    def kept(self):
        """The numbers of the chunks that are there and are what the map says; other marks are taken off."""
        good = set()
        try:
            data = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            self.discard()
            return good
        try:
            for index, (there, check) in enumerate(self.marks()):
                if there != 1:
                    continue
                piece = os.pread(data, self.length(index), index * CHUNK)
                if len(piece) == self.length(index) and zlib.crc32(piece) == check:
                    good.add(index)
                else:
                    self.unmark(index)
        finally:
            os.close(data)
        return good

    def unmark(self, index):
        with open(self.path + ".map", "r+b") as stream:
            stream.seek(index * MARK.size)
            stream.write(MARK.pack(0, 0))

    def whole(self):
        marks = self.marks()
        return len(marks) == self.chunks and all(there == 1 for there, _ in marks)

    def discard(self):
        for suffix in ("", ".map", ".who"):
            remove(self.path + suffix)

    def touched(self):
        """When something last arrived."""
        times = [0.0]
        for suffix in ("", ".map", ".who"):
            with contextlib.suppress(OSError):
                times.append(os.lstat(self.path + suffix).st_mtime)
        return max(times)


class Writer:
    """Puts chunks into a part, for as long as the part is there."""

    def __init__(self, part, session):
        self.part = part
        for left in reversed(range(5)):
            try:
                self.open(session)
            except FileNotFoundError:  # another sender has just removed the folder, which was empty
                if not left:
                    raise
            else:
                return

    def open(self, session):
        part = self.part
        os.makedirs(os.path.dirname(part.path), mode=0o700, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        who = os.open(part.path + ".who", flags | os.O_APPEND, 0o600)
        try:  # before the part is opened: whoever takes it away then knows of us
            os.write(who, session.encode() + b"\n")
        finally:
            os.close(who)
        self.data = os.open(part.path, flags, 0o600)
        try:
            self.map = os.open(part.path + ".map", flags, 0o600)
        except OSError:
            os.close(self.data)
            raise

    def put(self, index, piece, check):
        lock(self.data, fcntl.LOCK_SH)
        try:
            if not self.current():
                return  # finished by another sender
            at, left = index * CHUNK, piece
            while left:
                count = os.pwrite(self.data, left, at)
                at, left = at + count, left[count:]
            os.pwrite(self.map, MARK.pack(1, check), index * MARK.size)
        except OSError as error:
            error.filename = error.filename or self.part.path
            raise
        finally:
            lock(self.data, fcntl.LOCK_UN)

    def current(self):
        try:
            return os.path.samestat(os.fstat(self.data), os.lstat(self.part.path))
        except FileNotFoundError:
            return False

    def close(self):
        os.close(self.data)
        os.close(self.map)


def collect_parts(store, spare=()):
    """Removes parts into which nothing has come for days, and folders of ours that are empty."""
    folder = os.path.join(store, PARTS)
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return
    for digest in {name.partition(".")[0] for name in names} - set(spare):
        with contextlib.suppress(HostError):
            part = Part(store, digest, 0)
            if time.time() - part.touched() > STALE_PART_SECONDS:
                part.discard()
    with contextlib.suppress(OSError):
        os.rmdir(folder)
        if os.path.basename(store) == ".orch-transfers":
            os.rmdir(store)
