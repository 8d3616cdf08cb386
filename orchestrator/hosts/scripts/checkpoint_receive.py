# needs tree
"""Stages a checkpoint: from the tar stream on stdin, or from a folder of this host. All or nothing."""


def run(arguments):
    workdir = expand(arguments["workdir"])
    digest, files = arguments["hash"], arguments["files"]
    parent = os.path.join(workdir, "checkpoints")
    if tree_hash(files) != digest:
        raise HostError("checkpoint", f"the list of files is not that of checkpoint {digest[:12]}")
    final = os.path.join(parent, digest)
    with staging(parent, digest) as staged:
        try:
            if arguments.get("local"):
                copy(expand(arguments["local"]), staged, files)
            else:
                receive(staged, files, "checkpoint")
        except HostError as failure:
            if failure.record["kind"] == "checkpoint":
                failure.record["hint"] = (
                    "it changed while it was sent: wait until it is finished, then run this again"
                )
            raise
        seal(staged, {"schema": "orch/manifest/1", "checkpoint": digest, "files": files})
        outcome = publish(staged, final)
    return {"path": final, "outcome": outcome}


def copy(source, staged, files):
    for name, entry in files.items():
        if not safe_path(name):
            raise HostError("checkpoint", f"not a file's name: {name!r}", name)
        with open(os.path.join(source, name), "rb") as stream:
            write_verified(staged, name, stream, entry, "checkpoint")
            if stream.read(1):
                raise HostError(
                    "checkpoint", f"{name} has grown since it was looked at", os.path.join(source, name)
                )
