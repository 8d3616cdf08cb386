# needs supervise/nvidia supervise/lockdir supervise/processes
"""Which GPUs a host has, who leased them, who else computes there, and who is in line. Changes nothing."""

import pwd
import time


def gpu_answer(arguments):
    """Looks at the GPUs and the locks. What cannot be looked at is `fault`, and `fault_of` says what it is of."""
    path = os.path.expanduser(arguments["lock_dir"] or lockdir.SHARED)
    answer = {"now": time.time(), "lock_dir": path, "gpus": [], "line": [], "fault": "", "fault_of": ""}
    try:
        gpus = nvidia.look()
    except nvidia.NvidiaError as error:
        return dict(answer, nvidia_smi=True, fault=str(error), fault_of="driver")
    try:
        locks = lockdir.LockDir(path, shared=True) if os.path.lexists(path) else None
    except lockdir.LockDirError as error:
        return dict(answer, nvidia_smi=gpus is not None, fault=str(error), fault_of="locks")
    named = arguments["gpus"]
    for gpu in gpus or []:
        answer["gpus"].append(
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "name": gpu.name,
                "total_mib": gpu.total_mib,
                "used_mib": gpu.used_mib,
                "fault": gpu.fault(),
                "allowed": named is None or any(n == str(gpu.index) or gpu.uuid.startswith(n) for n in named),
                "occupied": gpu.occupied(arguments["gpu_free"]),
                "users": [
                    {"pid": one.pid, "user": owner(one.pid), "mib": one.mib, "name": one.name}
                    for one in gpu.users
                ],
                "lease": described(lock_holder(locks, gpu.uuid)),
            }
        )
    answer["line"] = [described(record) for record in locks.line()] if locks else []
    return dict(answer, nvidia_smi=gpus is not None)


def lock_holder(locks, uuid):
    """What the holder of a GPU's lock says of itself; a file that is none says so by being broken."""
    try:
        return locks.holder(uuid) if locks else None
    except lockdir.LockDirError as error:
        return {"fault": str(error)}


def owner(pid):
    """The name of the user whose process that is, where it can be seen."""
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def described(record):
    """What a holder or a waiting job says of itself (any user may have written it), and what the kernel says."""
    if record is None:
        return None
    pid = record.get("pid")
    started = processes.start_time(pid) if type(pid) is int and 0 < pid < 1 << 31 else None
    mine = started is not None and started == record.get("pid_started")
    since = record.get("since")
    wants = record.get("wants")
    return {
        "job_id": str(record.get("job_id", ""))[:200],
        "label": str(record.get("label", ""))[:200],
        "user": owner(pid) if mine else str(record.get("user", ""))[:80],
        "pid": pid if mine else None,
        "supervised": mine,
        "since": float(since) if type(since) in (int, float) else None,
        "wants": wants if type(wants) is int else None,
        "fault": str(record.get("fault", "")),
    }
