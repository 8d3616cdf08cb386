# needs parts
"""What a host has of a set of files, and the room there is: whole, in part, or within another checkpoint.

What always holds: what is called kept has just been read and fits its checksums; a twin lies in a folder of the
store that is as it was verified.
"""

SMALL = 64 << 10  # not worth a look for a twin


def run(arguments):
    final, store = places(arguments)
    files = arguments["files"]
    answer = {"path": final, "disk": disk_figures(store)}
    if is_there(final, files, arguments["plain"]):
        return dict(answer, there=True)
    if os.path.isdir(store):
        sweep(store)
        collect_parts(store, [digest for digest, _ in distinct(files)])
    twins = {} if arguments["afresh"] or arguments["plain"] else find_twins(store, files)
    missing, kept = {}, 0
    for digest, size in distinct(files):
        part = Part(store, digest, size)
        if arguments["afresh"]:
            part.discard()
        if digest in twins:
            continue
        have = part.kept()
        kept += sum(part.length(index) for index in have)
        gaps = ranges(index for index in range(part.chunks) if index not in have)
        if gaps:
            missing[digest] = gaps
    return dict(answer, there=False, missing=missing, kept=kept, twins=twins)


def is_there(final, files, plain):
    if not plain:
        return os.path.isdir(final) and not damage(final)
    if not os.path.lexists(final):
        return False
    if not os.path.isdir(final):
        raise HostError("in_the_way", "not a folder", final)
    found = listing(final, own=())
    if sorted(found) == sorted(files) and all(
        os.path.getsize(os.path.join(final, name)) == entry["size"]
        and file_hash(os.path.join(final, name)) == entry["sha256"]
        for name, entry in files.items()
    ):
        return True
    if found:
        raise HostError(
            "in_the_way", "it holds other files", final, hint="name another folder, or empty that one"
        )
    return False


def find_twins(store, files):
    """sha256 -> a verified file of the store with that content."""
    wanted = {digest for digest, size in distinct(files) if size >= SMALL}
    twins = {}
    for name in sorted(os.listdir(store)) if wanted and os.path.isdir(store) else ():
        folder = os.path.join(store, name)
        manifest = {} if name.startswith(".") else read_record(os.path.join(folder, "MANIFEST.json")) or {}
        listed = manifest.get("files") or {}
        found = {entry["sha256"]: path for path, entry in listed.items() if entry["sha256"] in wanted}
        if set(found) - set(twins) and not damage(folder):
            twins.update({digest: os.path.join(folder, path) for digest, path in found.items()})
    return twins


def ranges(numbers):
    """Numbers in order as [first, one past the last] pairs."""
    found = []
    for number in numbers:
        if found and found[-1][1] == number:
            found[-1][1] = number + 1
        else:
            found.append([number, number + 1])
    return found
