# needs files
"""How a content-addressed folder on a host is: its files, its records, what differs from its manifest. Writes nothing."""


def listing(folder, own=("MANIFEST.json", "CHECKED.json")):
    """Every file below a folder, by relative path; what is no plain file or folder is listed as such too."""
    found = []
    pending = [""]
    while pending:
        prefix = pending.pop()
        with os.scandir(os.path.join(folder, prefix)) as entries:
            for entry in entries:
                path = prefix + entry.name
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != "__pycache__":
                        pending.append(path + "/")
                elif path not in own:
                    found.append(path)
    return found


def read_record(path):
    """A JSON object from a file of ours, or None if it is not there or broken."""
    try:
        with open(path, "rb") as stream:
            record = json.loads(stream.read())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def damage(folder, thorough=False):
    """What differs between a folder and its manifest: sentences, none if it is as it was verified.

    Stamps decide where they match; where they do not, and always when `thorough`, the content does.
    """
    manifest = read_record(os.path.join(folder, "MANIFEST.json"))
    if manifest is None or not isinstance(manifest.get("files"), dict):
        return ["MANIFEST.json is missing or broken"]
    files = manifest["files"]
    stamps = (read_record(os.path.join(folder, "CHECKED.json")) or {}).get("stamps") or {}
    found = listing(folder)
    wrong = [f"{path} does not belong there" for path in sorted(set(found) - set(files))]
    wrong += [f"{path} is missing" for path in sorted(set(files) - set(found))]
    for path in sorted(set(found) & set(files)):
        full = os.path.join(folder, path)
        now = stamp(full)
        if now[0] != files[path]["size"] or os.path.islink(full):
            wrong.append(f"{path} has another size")
        elif (thorough or now != stamps.get(path)) and file_hash(full) != files[path]["sha256"]:
            wrong.append(f"{path} has other content")
    if not wrong and (thorough or not stamps) and tree_hash(files) != os.path.basename(folder):
        wrong.append("MANIFEST.json is of another tree")
    return wrong
