# needs env_place driver check_python env_plan env_sources env_build
"""Sees whether the environment that is wanted is there and in use; if not, begins to build it and does not wait.

What always holds: asking again is asking once: an environment that is there is only put to use, one that is being
built is not built a second time. With `dry_run` nothing is made.
"""


def run(arguments):
    """Answers with the plan and a status: unchanged, switched, running, building, or (dry run) planned."""
    workdir = expand(arguments["workdir"])
    os.environ.update(arguments["env"])
    plan = make_plan(workdir, arguments)
    name, used = plan["name"], in_use(workdir)
    answer = {
        "plan": plan,
        "workdir": workdir,
        "folder": env_folder(workdir, name),
        "log": log_path(workdir, name),
        "before": used,
        "others": others(workdir, name),
        "record": whole(workdir, name),
        "disk": disk_figures(workdir),
        "offset": 0,
    }
    before = answer["record"]
    there = before is not None and not arguments["rebuild"]
    if there and used == name:
        return dict(answer, status="unchanged")
    if arguments["dry_run"]:
        return dict(answer, status="switched" if there else "planned")
    os.makedirs(envs(workdir), exist_ok=True)
    lock = take_lock(workdir, 2.0)
    if lock is None:
        return dict(answer, status="running", **running(workdir, name))
    try:
        record = answer["record"] = whole(workdir, name)
        if there or (record is not None and record != before):  # somebody else has built it meanwhile
            use(workdir, name)
            return dict(answer, status="switched")
        enough_room(plan, answer["disk"], workdir)
        remove(failure_path(workdir, name))
        return dict(answer, status="building", offset=build_detached(workdir, plan, arguments, lock))
    finally:
        os.close(lock)


def others(workdir, name):
    """Environments beside this one that are whole."""
    found = os.listdir(envs(workdir)) if os.path.isdir(envs(workdir)) else []
    return sorted(other for other in found if other != name and whole(workdir, other))


def running(workdir, name):
    """Where the output of the build that is going on begins; another environment's is waited for by hand."""
    record = builder(workdir)
    if record.get("name") == name:
        return {"offset": int(record.get("offset", 0))}
    raise HostError(
        "busy",
        f"another environment ({record.get('name', 'unknown')}) is being built there (pid {record.get('pid', 'unknown')})",
        envs(workdir),
        hint="wait until it is done, then run this again",
    )


def enough_room(plan, disk, workdir):
    if disk["free"] < plan["space"]:
        raise HostError(
            "disk",
            f"an environment with these packages needs about {plan['space'] / (1 << 30):.1f} GiB",
            workdir,
            disk=disk,
            quota=False,
        )
