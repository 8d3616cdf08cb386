# needs release_state
"""One look at a host before a push: interpreter, disk, what is installed, what is current. Writes nothing."""


def run(arguments):
    workdir = expand(arguments["workdir"])
    release = arguments["release"]
    folder = release_folder(workdir, release)
    current = current_release(workdir)
    wrong = damage(folder) if os.path.isdir(folder) else None
    checked = checked_by(folder) if wrong == [] else {}
    answer = {
        "python": list(sys.version_info[:3]),
        "executable": sys.executable,
        "workdir": workdir,
        "current": current,
        "installed": wrong is not None,
        "damage": wrong or [],
        "checked": checked.get(interpreter()),
        "disk": disk_figures(workdir),
    }
    if arguments.get("manifest") and current:
        manifest = read_record(os.path.join(release_folder(workdir, current), "MANIFEST.json")) or {}
        answer["manifest"] = manifest.get("files") or {}
    return answer
