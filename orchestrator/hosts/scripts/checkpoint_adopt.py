"""Writes settings of a convention into `orch.json` beside a checkpoint, under a temporary name, renamed last.

What always holds: what else the file holds stays; a file that is no such record is refused, never replaced.
"""


def run(arguments):
    folder = os.path.realpath(expand(arguments["path"]))
    path = os.path.join(folder, "orch.json")
    record = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as stream:
            try:
                record = json.load(stream)
            except ValueError as error:
                raise HostError("bad_record", f"not JSON ({error})", path) from error
        if not isinstance(record, dict) or not isinstance(record.get("convention", {}), dict):
            raise HostError("bad_record", 'not an object with "convention": {setting: value}', path)
    before = record.get("convention", {})
    record["convention"] = dict(before, **arguments["settings"])
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8") as stream:
            json.dump(record, stream, indent=1, sort_keys=True)
            stream.write("\n")
            stream.flush()
            os.fsync(stream.fileno())
        os.rename(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
    return {"path": path, "before": before, "convention": record["convention"]}
