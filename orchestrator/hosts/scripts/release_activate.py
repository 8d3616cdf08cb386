# needs tree releases
"""Makes an installed release current, named by the start of its hash.

Its files are verified by content first, and its self-check runs again where it has not passed under this
interpreter yet.
"""


def named(workdir, prefix):
    found = [release for release in installed(workdir) if release.startswith(prefix)]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(name[:12] for name in found or installed(workdir)) or "none"
    if found:
        raise HostError("usage", f"{prefix!r} fits several releases: {listed}", hint="give more digits")
    raise HostError(
        "usage", f"no release {prefix!r} is installed; there are: {listed}", hint="name one of these"
    )


def run(arguments):
    workdir = expand(arguments["workdir"])
    before = current_release(workdir)
    release = named(workdir, arguments["release"])
    folder = release_folder(workdir, release)
    wrong = damage(folder, thorough=True)
    if wrong:
        raise HostError(
            "system",
            f"release {release[:12]} is not as it was installed: {'; '.join(wrong[:10])}",
            folder,
            hint="`orch push` of that version repairs it",
            damage=wrong,
        )
    passed = checked_by(folder).get(interpreter())
    if passed is None:
        files = read_record(os.path.join(folder, "MANIFEST.json"))["files"]
        answer = prove(folder, files, arguments["env"], arguments["limit"])
    else:
        answer = passed["selfcheck"]
    removed = activate(workdir, release, arguments["keep"])
    return {"release": release, "before": before, "selfcheck": answer, "removed": removed}
