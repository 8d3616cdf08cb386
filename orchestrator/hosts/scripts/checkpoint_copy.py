# needs tree checkpoint_torch checkpoint_origin
"""Stages a checkpoint from files of this host itself. All or nothing."""


def run(arguments):
    parent = os.path.join(expand(arguments["workdir"]), "checkpoints")
    digest, files = arguments["hash"], arguments["files"]
    if tree_hash(files) != digest:
        raise HostError("checkpoint", f"the list of files is not that of checkpoint {digest[:12]}")
    final = os.path.join(parent, digest)
    with staging(parent, digest) as staged:
        try:
            copy(staged, files)
        except HostError as failure:
            if failure.record["kind"] == "checkpoint":
                failure.record["changed"] = True
                failure.record["hint"] = (
                    "it changed while it was sent: wait until it is finished, then run this again"
                )
            raise
        kept = {name: {"size": entry["size"], "sha256": entry["sha256"]} for name, entry in files.items()}
        seal(staged, {"schema": "orch/manifest/1", "checkpoint": digest, "files": kept})
        outcome = publish(staged, final)
    return {"path": final, "outcome": outcome}


def copy(staged, files):
    for name, entry in files.items():
        if not safe_path(name):
            raise HostError("checkpoint", f"not a file's name: {name!r}", name)
        where = origin_file(entry["origin"]) or name
        try:
            stream = open_origin(entry["origin"])
        except FileNotFoundError as error:
            raise HostError("checkpoint", f"{name} is gone since it was looked at", where) from error
        with stream:
            write_verified(staged, name, stream, entry, "checkpoint")
            if stream.read(1):
                raise HostError("checkpoint", f"{name} has grown since it was looked at", where)
