# needs tree
"""Whether a checkpoint is staged on a host as it was verified, and the room there is for it."""


def run(arguments):
    workdir = expand(arguments["workdir"])
    folder = os.path.join(workdir, "checkpoints", arguments["hash"])
    there = os.path.isdir(folder) and not damage(folder)
    return {"there": there, "path": folder, "disk": disk_figures(workdir)}
