"""What an environment is made of, from what is wanted and what the host is: decided here, before anything is made.

What always holds: the same wishes on the same kind of host give the same name; a torch for CUDA is chosen by the driver.
"""

import hashlib
import shutil


def numbers(version):
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def base_interpreter(workdir):
    """The Python that an environment is made from: ours, or where that is an environment's, what that was made from."""
    parent = os.path.dirname(os.path.dirname(os.path.dirname(sys.executable)))
    if os.path.realpath(parent) != os.path.realpath(envs(workdir)):
        return sys.executable
    name = os.path.basename(os.path.dirname(os.path.dirname(sys.executable)))
    base = (whole(workdir, name) or {}).get("base", "")
    return base if os.access(base, os.X_OK) else sys.executable


def make_plan(workdir, arguments):
    """Installer, torch's build and where it may come from, space, and the name that stands for all of it."""
    torch = dict(arguments["torch"], build="", attempts=[])
    driver_version = driver()["version"]
    if torch["wanted"]:
        torch["build"] = torch_build(torch, arguments["builds"], driver_version)
        torch["attempts"] = torch_attempts(torch, arguments["builds"], arguments["pages"])
    python = ".".join(map(str, sys.version_info[:2]))
    kind = [sys.platform, os.uname().machine, sys.implementation.name, python]
    wishes = [arguments["requirements"], arguments["constraints"], torch["build"], torch["index"]]
    name = hashlib.sha256(canonical([wishes, kind]).encode()).hexdigest()[:16]
    size = "none" if not torch["wanted"] else "cpu" if torch["build"] == "cpu" else "cuda"
    return {
        "name": name,
        "python": sys.version.split()[0],
        "base": base_interpreter(workdir),
        "driver": driver_version,
        "torch": torch,
        "uv": find_uv(),
        "space": arguments["space"][size],
    }


def find_uv():
    """The uv program: on the PATH, beside the interpreter, or where its installer puts it; empty if there is none."""
    beside = os.path.dirname(sys.executable)
    usual = [beside, *(os.path.expanduser(f"~/{folder}") for folder in (".local/bin", ".cargo/bin"))]
    return shutil.which("uv") or shutil.which("uv", path=os.pathsep.join(usual)) or ""


def torch_build(torch, builds, driver_version):
    """The build of torch: `cpu`, or that for the newest CUDA that the driver runs."""
    choice = torch["choice"]
    if choice == "cpu" or (choice == "auto" and not driver_version):
        return "cpu"
    if torch["index"]:
        return "cuda"
    if not driver_version:
        return builds[0]["build"]
    for build in builds:
        if numbers(driver_version) >= numbers(build["driver"]):
            return build["build"]
    raise HostError(
        "environment",
        f"the NVIDIA driver {driver_version} is too old for every torch that the payload works with "
        f"({builds[-1]['driver']} or newer is needed)",
        hint="update the driver; `--torch cpu` makes an environment without CUDA; `--torch-index URL` takes a torch of yours",
    )


def torch_attempts(torch, builds, pages):
    """Where torch may come from, the first that has it: [requirement, index]; no index is the host's own source."""
    exact = f"torch=={torch['pin']}" if torch["pin"] else f"torch{torch['spec']}"
    if torch["index"]:
        return [[exact, torch["index"]]]
    if sys.platform != "linux":
        return [[exact, ""]]
    if torch["build"] == "cpu":
        return ([[f"torch=={torch['pin']}+cpu", ""]] if torch["pin"] else []) + [[exact, f"{pages}/cpu"]]
    (named,) = [
        [f"{pages}/{page}" for page in build["pages"]] for build in builds if build["build"] == torch["build"]
    ]
    if torch["build"] == builds[0]["build"]:
        own = (
            [[exact, ""]] if os.uname().machine == "x86_64" else []
        )  # elsewhere the usual one is for the CPU
        return own + [[exact, page] for page in named]
    # The tested version may have no build for an older CUDA: then the newest that the payload works with and that has.
    return [[one, page] for one in dict.fromkeys((exact, f"torch{torch['spec']}")) for page in named]
