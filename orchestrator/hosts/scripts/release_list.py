# needs tree releases
"""The releases of a host: when each was last activated, whether it is current, whether a live job pins it."""


def run(arguments):
    workdir = expand(arguments["workdir"])
    removed = []
    if arguments.get("keep") is not None and installed(workdir):
        with locked(workdir):
            removed = prune(workdir, arguments["keep"])
    last = {release: at for at, release in activations(workdir)}
    current, live = current_release(workdir), pinned(workdir) or set()
    rows = []
    for release in installed(workdir):
        manifest = read_record(os.path.join(release_folder(workdir, release), "MANIFEST.json")) or {}
        sizes = [entry["size"] for entry in (manifest.get("files") or {}).values()]
        rows.append(
            {
                "release": release,
                "activated": last.get(release),
                "current": release == current,
                "pinned": release in live,
                "files": len(sizes),
                "bytes": sum(sizes),
            }
        )
    return {"releases": sorted(rows, key=lambda row: row["activated"] or 0), "removed": removed}
