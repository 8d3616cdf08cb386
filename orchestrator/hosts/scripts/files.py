"""What a file and a set of files are: hashes, stamps, names that cannot leave their folder.

What always holds: an identity depends on names, sizes and contents alone.
"""

PIECE = 1 << 20


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def tree_hash(files):
    """The identity of a set of files, as `durable.tree_hash` computes it."""
    import hashlib

    entries = sorted([path, entry["size"], entry["sha256"]] for path, entry in files.items())
    return hashlib.sha256(canonical(entries).encode()).hexdigest()


def safe_path(path):
    """True for a relative path that cannot leave its folder."""
    parts = path.split("/")
    return not ("\0" in path or "\\" in path or any(part in ("", ".", "..") for part in parts))


def file_hash(path):
    import hashlib

    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for piece in iter(lambda: stream.read(PIECE), b""):
            digest.update(piece)
    return digest.hexdigest()


def stamp(path):
    status = os.lstat(path)
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
