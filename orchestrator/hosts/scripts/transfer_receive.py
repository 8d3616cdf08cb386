# needs parts
"""Takes chunks from stdin into their parts and, when asked, makes a folder of the whole: verified, renamed last.

What always holds: a chunk is written only if its checksum is right; nothing is under its final name before the
SHA-256 of every file was. A file that came in order, from its beginning, from one sender alone, was hashed as it
came; any other is read once more. What arrived is kept for the next try; on a full disk it is removed, since
that stops others too.
"""

import concurrent.futures
import hashlib
import threading

PIECE_READ = 256 << 10
FLUSH_EVERY = 64 << 20
BUFFERS = [memoryview(bytearray(CHUNK)) for _ in range(2)]


def run(arguments):
    final, store = places(arguments)
    files = arguments["files"]
    unsafe = [name for name in files if not safe_path(name)]
    if unsafe or not safe_path(arguments["name"]):
        raise HostError("checkpoint", f"not a file's name: {(unsafe or [arguments['name']])[0]!r}")
    if not arguments["plain"] and tree_hash(files) != arguments["name"]:
        raise HostError("checkpoint", f"the list of files is not that of checkpoint {arguments['name'][:12]}")
    parts = [Part(store, digest, size) for digest, size in distinct(files)]
    full = False
    widen(sys.stdin.fileno())
    if arguments["greet"]:
        sys.stdout.write("orch-receives\n")
        sys.stdout.flush()
    try:
        received, hashed = receive_chunks(Incoming(), parts, arguments["session"])
        if not arguments["finish"]:
            return {"received": received}
        return dict(finish(final, store, arguments, parts, hashed), received=received)
    except OSError as error:
        full = error.errno in _DISK
        record = classify(error, store)  # with its figures, before anything is removed
        raise HostError(record.pop("kind"), record.pop("message"), **record) from error
    finally:
        done = not arguments["plain"] and os.path.isdir(final) and not damage(final)
        if full or done or arguments["finish"]:
            tidy(store, parts, full or done)


def tidy(store, parts, all_of_it):
    """Keeps of what has arrived what is worth a resumption; nothing on a full disk, or of what is there whole."""
    for part in parts:
        if all_of_it or part.size < CHUNK or not any(there for there, _ in part.marks()):
            part.discard()
    collect_parts(store, [part.digest for part in parts])


class Hasher:
    """Hashes chunks beside the thread that reads and writes them, each while the next one comes into its buffer."""

    def __init__(self):
        self.pool = concurrent.futures.ThreadPoolExecutor(1)
        self.busy = [None] * len(BUFFERS)
        self.turn = 0

    def buffer(self):
        """A buffer that is not being hashed any more."""
        self.turn = (self.turn + 1) % len(BUFFERS)
        self.wait(self.turn)
        return BUFFERS[self.turn]

    def hash(self, digest, chunk):
        """Hashes what has been read into the last buffer, after all that came before."""
        self.busy[self.turn] = self.pool.submit(digest.update, chunk)

    def wait(self, turn):
        if self.busy[turn] is not None:
            self.busy[turn].result()
            self.busy[turn] = None

    def settle(self):
        """Waits until nothing is being hashed."""
        for turn in range(len(BUFFERS)):
            self.wait(turn)


class Inflow:
    """One file as it comes: its chunks are checked, written, and hashed for as long as they come in order."""

    def __init__(self, part, session, hasher):
        self.part, self.writer, self.hasher = part, Writer(part, session), hasher
        self.digest, self.next = hashlib.sha256(), 0
        self.unflushed, self.flusher = 0, None

    def take(self, stream, index, length, check):
        if index >= self.part.chunks or length != self.part.length(index):
            raise HostError("cut", f"chunk {index} of {self.part.digest[:12]} has an impossible size")
        chunk = self.hasher.buffer()[:length]
        seen = at = 0
        while at < length:
            piece = chunk[at : at + PIECE_READ]
            fill(stream, piece)
            seen = zlib.crc32(piece, seen)
            at += len(piece)
        if seen != check:
            raise HostError("cut", f"chunk {index} of {self.part.digest[:12]} was damaged on the way")
        in_order = index == self.next
        if in_order:
            self.hasher.hash(self.digest, chunk)
        self.writer.put(index, chunk, check)
        self.next = index + 1 if in_order else -1
        self.flush(length)

    def flush(self, length):
        """Has the disk write while more comes, so that the end does not wait for all of it."""
        self.unflushed += length
        if self.unflushed < FLUSH_EVERY or (self.flusher is not None and self.flusher.is_alive()):
            return
        self.unflushed = 0
        self.flusher = threading.Thread(target=flush_quietly, args=(self.writer.data,), daemon=True)
        self.flusher.start()

    def finished(self):
        """Whether all of it came through here, in order, with the right hash."""
        if self.flusher is not None:
            self.flusher.join()
        self.writer.close()
        return self.next == self.part.chunks and self.digest.hexdigest() == self.part.digest


def flush_quietly(descriptor):
    with contextlib.suppress(OSError):  # the end syncs once more, and tells
        os.fdatasync(descriptor)


def fill(stream, view):
    while view:
        count = stream.readinto(view)
        if not count:
            raise HostError("cut", "the stream ended early", hint=GOES_ON)
        view = view[count:]


GOES_ON = "run this again: it goes on from where it stopped"


def receive_chunks(stream, parts, session):
    """Reads frames to their end. Returns the bytes that came, and the digests that were found right on the way."""
    flows, received, hasher = {}, 0, Hasher()
    head = memoryview(bytearray(FRAME.size))
    try:
        while True:
            fill(stream, head)
            if bytes(head) == END:
                break
            number, index, length, check = FRAME.unpack(head)
            if number >= len(parts):
                raise HostError("cut", f"the stream speaks of a file {number} that there is not")
            if number not in flows:
                flows[number] = Inflow(parts[number], session, hasher)
            flows[number].take(stream, index, length, check)
            received += length
    finally:
        hashed = {flow.part.digest for flow in list(flows.values()) if flow.finished()}
    return received, hashed


# --------------------------------------------------------------------------- the whole


def finish(final, store, arguments, parts, hashed):
    """Makes the folder. Returns its path, or the names of what has to be sent again."""
    try:
        return assemble(final, store, arguments, parts, hashed)
    except FileNotFoundError:  # another sender was quicker, and has tidied up what we counted on
        return there_already(final, arguments) or {"again": sorted(arguments["files"]), "wrong": False}


def there_already(final, arguments):
    if not arguments["plain"] and os.path.isdir(final) and not damage(final):
        return {"path": final, "outcome": "present"}
    return None


def assemble(final, store, arguments, parts, hashed):
    files, twins = arguments["files"], arguments["twins"]
    with contextlib.ExitStack() as stack:
        good = {}
        for part in parts:
            if part.size and part.digest not in twins:
                good[part.digest] = held(stack, part, part.digest in hashed, arguments["session"])
        bad = {digest: state for digest, state in good.items() if state != "right"}
        if bad:
            again = sorted(name for name, entry in files.items() if entry["sha256"] in bad)
            return there_already(final, arguments) or {"again": again, "wrong": "wrong" in bad.values()}
        staged = stack.enter_context(staging(store, arguments["name"]))
        try:
            for name in sorted(files):
                place_file(staged, name, files, good, twins, store)
        except HostError as failure:
            if failure.record["kind"] != "twin":
                raise
            return {"again": [failure.record["path"]], "wrong": True}
        outcome = (
            publish_plain(staged, final, files)
            if arguments["plain"]
            else publish_sealed(staged, final, files)
        )
        for part in parts:
            part.discard()
    return {"path": final, "outcome": outcome}


def held(stack, part, hashed, session):
    """Locks a part against its writers until the stack ends; says whether it is "right", "wrong" or "absent"."""
    try:
        data = os.open(part.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return "absent"
    stack.callback(os.close, data)
    lock(data, fcntl.LOCK_EX)
    if not os.path.exists(part.path) or not os.path.samestat(os.fstat(data), os.lstat(part.path)):
        return "absent"
    if not part.whole() or os.fstat(data).st_size != part.size:
        return "absent"
    with open(part.path + ".who", "rb") as stream:
        alone = stream.read() == session.encode() + b"\n"
    if not (hashed and alone) and file_hash(part.path) != part.digest:
        part.discard()
        return "wrong"
    os.fsync(data)
    return "right"


def place_file(staged, name, files, good, twins, store):
    entry, full = files[name], os.path.join(staged, name)
    os.makedirs(os.path.dirname(full), exist_ok=True)
    same = next((n for n in sorted(files) if n < name and files[n]["sha256"] == entry["sha256"]), None)
    where = os.path.join(staged, same) if same else twins.get(entry["sha256"])
    if where is None and entry["sha256"] in good:
        os.rename(os.path.join(store, PARTS, entry["sha256"]), full)
        os.chmod(full, 0o444)
        return
    try:
        with open(where or os.devnull, "rb") as stream:
            write_verified(staged, name, stream, entry, "twin")
    except FileNotFoundError as error:
        raise HostError("twin", "its twin is gone", name) from error


def publish_sealed(staged, final, files):
    kept = {name: {"size": entry["size"], "sha256": entry["sha256"]} for name, entry in files.items()}
    seal(staged, {"schema": "orch/manifest/1", "checkpoint": os.path.basename(final), "files": kept})
    return publish(staged, final)


def publish_plain(staged, final, files):
    """Renames a folder to a name of the user's, where nothing may be; its files are the user's to change."""
    for name in files:
        os.chmod(os.path.join(staged, name), 0o644)
    sync(staged)
    try:
        os.rename(staged, final)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        raise HostError("in_the_way", "something was put there meanwhile", final) from error
    sync(os.path.dirname(final))
    return "installed"
