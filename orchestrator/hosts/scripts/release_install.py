# needs tree releases
"""Installs a release from the tar stream on stdin, proves it, and makes it current. All or nothing."""


def run(arguments):
    workdir = expand(arguments["workdir"])
    release, files = arguments["release"], arguments["files"]
    parent = os.path.join(workdir, "releases")
    if tree_hash(files) != release:
        raise HostError("payload", f"the manifest is not that of release {release[:12]}")
    current_release(workdir)  # fails early, before a byte is written, if something else lies there
    with staging(parent, release) as staged:
        receive(staged, files, "payload")
        answer = prove(staged, files, arguments["env"], arguments["limit"])
        seal(staged, {"schema": "orch/manifest/1", "release": release, "files": files})
        outcome = publish(staged, release_folder(workdir, release))
    removed = activate(workdir, release, arguments["keep"])
    return {"outcome": outcome, "selfcheck": answer, "removed": removed}
