# needs tree supervisor
"""Launches or resumes a job, as `supervise`, once its release is what was installed, and nothing else is run.

The stamps of the release are looked at, the content where they differ. Bytecode in it is removed: it would run in
the place of sources that are as their hash says.
"""


def run(arguments):
    """Checks the release that the job pins, then asks its supervisor."""
    release = expand(arguments["roots"][0])
    if os.path.isdir(release):
        remove_bytecode(release)
        wrong = damage(release)
        if wrong:
            raise HostError(
                "damaged",
                f"release {os.path.basename(release)[:12]} is not as it was installed: {'; '.join(wrong[:5])}",
                release,
                damage=wrong,
            )
    return ask_supervisor(arguments)


def remove_bytecode(folder):
    for base, folders, _ in os.walk(folder):
        if "__pycache__" in folders:
            folders.remove("__pycache__")
            remove(os.path.join(base, "__pycache__"))
