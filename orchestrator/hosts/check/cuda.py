"""Whether driver, CUDA, torch and GPUs of a host fit one another, and who uses the GPUs.

What always holds: a host without GPUs is no fault; of several reasons why torch reaches no GPU the first in the chain
driver → build → architecture is named, because the others follow from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.hosts.check.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from orchestrator.inventory import HostEntry

__all__ = ["OLDEST_DRIVER", "judge_gpus", "runs_on", "version_numbers"]

OLDEST_DRIVER: dict[int, str] = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
"""The oldest Linux driver that runs programs of a CUDA major version (NVIDIA's minor version compatibility)."""


def version_numbers(text: str) -> tuple[int, ...]:
    """Returns the numbers of a dotted version, to compare by; () for one that has none."""
    parts = text.split(".")
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else ()


def runs_on(capability: Sequence[int], archs: Sequence[str]) -> bool:
    """Says whether a torch that was built for `archs` has code for a GPU of a compute capability.

    Compiled code (sm_XY) runs on the same major version with the same or a newer minor one, that of one architecture
    alone (sm_90a) on that one; intermediate code (compute_XY) on everything from XY on.
    """
    major, minor = capability
    for arch in archs:
        kind, _, digits = arch.partition("_")
        exact = digits[-1:].isalpha()
        number = digits.rstrip("abcdef")
        if not number.isdecimal():
            continue
        its_major, its_minor = divmod(int(number), 10)
        if kind == "compute" and not exact and (major, minor) >= (its_major, its_minor):
            return True
        if kind == "sm" and its_major == major and (its_minor == minor or (its_minor < minor and not exact)):
            return True
    return False


def judge_gpus(entry: HostEntry, facts: Mapping[str, Any]) -> list[Finding]:
    """Judges the GPUs, their users, and whether torch reaches them."""
    seen = facts["gpus"]
    if seen.get("fault_of") == "locks":  # the locks' own finding says it; the GPUs were not asked any further
        return []
    if seen.get("fault"):
        return [_fault(seen["fault"])]
    gpus = seen["gpus"]
    if not gpus:
        return [_none(entry, facts)]
    torch = facts["packages"].get("torch") or {}
    reached = next(_unreached(entry, facts["driver"].get("version", ""), torch, len(gpus)), None)
    return [_users(entry, gpus), *([reached] if reached else [])]


def _fault(text: str) -> Finding:
    fix = "see `nvidia-smi` and `dmesg` there"
    if "mismatch" in text:
        fix = "the driver was updated while it was loaded: reboot the host, or unload and load the nvidia modules there"
    return Finding("gpus", "error", text, f"{fix}; jobs with `--device cpu` run without it")


def _none(entry: HostEntry, facts: Mapping[str, Any]) -> Finding:
    smi = facts["gpus"]["nvidia_smi"]
    why = "" if smi else " (no nvidia-smi on its PATH)"
    if facts["devices"] and not smi:
        return Finding(
            "gpus",
            "error",
            f"{facts['devices'][0]} is there, but no nvidia-smi on the PATH of programs: no GPU can be given to a job",
            f"`env: {{PATH: …}}` of hosts.{entry.name} with the folder that has nvidia-smi, or install the driver's tools",
        )
    if entry.gpus:
        return Finding(
            "gpus",
            "error",
            f"the inventory names GPUs ({', '.join(map(str, entry.gpus))}) and the host has none{why}",
            f"correct `gpus:` of hosts.{entry.name}, or mend the driver there",
        )
    return Finding("gpus", "ok", f"no GPU{why}; jobs run on the CPU")


def _unreached(entry: HostEntry, driver: str, torch: Mapping[str, Any], count: int) -> Iterator[Finding]:
    """Yields why torch does not reach the GPUs, the first cause first."""
    version = torch.get("version")
    if not version or torch.get("fault"):
        return  # the packages' own finding says it
    fix = f"`orch hosts setup {entry.name}` installs a build that fits the driver"
    if not torch["cuda"] and not torch["hip"]:
        plural = f"{count} GPUs" if count > 1 else "a GPU"
        yield Finding(
            "torch", "error", f"torch {version} is built for the CPU only, and the host has {plural}", fix
        )
        return
    cuda = str(torch["cuda"] or "")
    oldest = OLDEST_DRIVER.get((version_numbers(cuda) or (0,))[0], "")
    if driver and oldest and version_numbers(driver) < version_numbers(oldest):
        yield Finding(
            "torch",
            "error",
            f"the driver {driver} is too old for CUDA {cuda}, which torch {version} is built for (it needs {oldest} or newer)",
            f"update the driver; or {fix}",
        )
    elif not torch["available"]:
        yield Finding(
            "torch",
            "error",
            f"torch {version} (CUDA {cuda}) does not reach the GPUs: {torch['said'] or 'it does not say why'}",
            f"see `nvidia-smi` there, and CUDA_VISIBLE_DEVICES in `env:` of hosts.{entry.name} and in its shell",
        )
    elif strange := [
        one for one in torch["devices"] if torch["archs"] and not runs_on(one["capability"], torch["archs"])
    ]:
        names = ", ".join(
            sorted({f"{one['name']} (sm_{one['capability'][0]}{one['capability'][1]})" for one in strange})
        )
        yield Finding(
            "torch",
            "error",
            f"torch {version} has no code for {names}; it was built for {', '.join(torch['archs'])}",
            f"a newer torch, or one built for it: `orch hosts setup {entry.name} --torch-index URL`",
        )
    else:
        yield Finding(
            "torch",
            "ok",
            f"torch {version} (CUDA {cuda}) reaches {len(torch['devices'])} GPUs, driver {driver or '?'}",
        )


def _users(entry: HostEntry, gpus: Sequence[Mapping[str, Any]]) -> Finding:
    kinds = sorted({str(gpu["name"]) for gpu in gpus})
    seen = f"{len(gpus)} × {', '.join(kinds)}"
    taken = [gpu for gpu in gpus if gpu["lease"] or gpu["users"] or gpu["occupied"] or gpu["fault"]]
    if taken:
        seen += "; " + "; ".join(f"{gpu['index']}: {_by(gpu)}" for gpu in taken)
    usable = [gpu for gpu in gpus if gpu["allowed"] and not gpu["fault"]]
    if not usable:
        return Finding(
            "gpus", "error", f"no GPU may be given to a job: {seen}", f"see `gpus:` of hosts.{entry.name}"
        )
    if not [gpu for gpu in usable if gpu not in taken]:
        return Finding(
            "gpus",
            "note",
            f"no GPU is free: {seen}",
            f"jobs wait in line; `orch hosts gpus {entry.name}` shows it",
        )
    return Finding("gpus", "ok", seen)


def _by(gpu: Mapping[str, Any]) -> str:
    """Who has a GPU, in few words."""
    lease = gpu["lease"]
    words = []
    if lease is not None:
        words.append(lease["fault"] or f"job {lease['job_id'] or 'unknown'} of {lease['user'] or 'unknown'}")
    words += [
        f"{one['name']} of {one['user'] or 'pid'} {one['pid']}"
        if not one["user"]
        else f"{one['name']} of {one['user']}"
        for one in gpu["users"]
    ]
    return ", ".join(words) or gpu["fault"] or gpu["occupied"]
