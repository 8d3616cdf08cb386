"""Expands the globs of checkpoint references: folders only, and no link beside the folder it leads to."""


def run(arguments):
    return {"found": {pattern: expand_pattern(pattern) for pattern in arguments["patterns"]}}


def expand_pattern(pattern):
    import glob

    full = expand(pattern)
    if os.path.isdir(full):  # a folder whose own name has such characters
        return {"folders": [full], "others": 0}
    found = sorted(glob.glob(full))
    folders = [path for path in found if os.path.isdir(path)]
    real = {path for path in folders if not os.path.islink(path)}
    kept = [path for path in folders if path in real or os.path.realpath(path) not in real]
    return {"folders": kept, "others": len(found) - len(folders)}
