"""Which packages an interpreter has as a job would find them, and what torch says of itself and of the GPUs.

What always holds: they are asked in a process of its own, so that a package that crashes or hangs while it is
imported takes nothing down; what that process has said before its end counts. As with any import, Python keeps what
it compiled.
"""

import contextlib
import subprocess

FACT = "orch-fact "
_ASK = """
import importlib.metadata, json, sys

def say(**facts):
    sys.stdout.write("\\n" + sys.argv[1] + json.dumps(facts) + "\\n")
    sys.stdout.flush()

found = {}
for name in json.loads(sys.argv[2]):
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found[name] = None
say(versions=found, prefix=sys.prefix)
if found.get("torch"):
    import warnings
    try:
        import torch
    except BaseException as error:
        say(torch={"fault": f"{type(error).__name__}: {error}"})
        sys.exit()
    facts = {"version": torch.__version__, "cuda": torch.version.cuda, "hip": getattr(torch.version, "hip", None)}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        facts["available"] = bool(torch.cuda.is_available())
    facts["said"] = " ".join(str(one.message) for one in said)[:1000]
    facts["devices"], facts["archs"] = [], []
    if facts["available"]:
        try:
            facts["archs"] = list(torch.cuda.get_arch_list())
            for index in range(torch.cuda.device_count()):
                major, minor = torch.cuda.get_device_capability(index)
                facts["devices"].append({"name": torch.cuda.get_device_name(index), "capability": [major, minor]})
        except Exception as error:
            facts["said"] = f"{type(error).__name__}: {error}"[:1000]
    say(torch=facts)
"""


def start_packages(names, executable=sys.executable):
    """Starts to ask an interpreter, with the environment that jobs have."""
    settings = dict(os.environ, PYTHONUTF8="1")
    return subprocess.Popen(
        [executable, "-c", _ASK, FACT, json.dumps(names)],
        env=settings,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish_packages(process, limit):
    """What it said: `versions` by name, `torch`, and `fault` if it did not come to its end by itself."""
    answer = {"versions": {}, "prefix": "", "torch": None, "fault": ""}
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        answer["fault"] = f"importing torch took longer than {limit:g} s"
        end_process(process)
        out, err = process.communicate()
    except BaseException:
        end_process(process)
        raise
    for line in out.decode("utf-8", "replace").splitlines():
        if line.startswith(FACT):
            answer.update(json.loads(line[len(FACT) :]))
    if process.returncode and not answer["fault"]:
        words = err.decode("utf-8", "replace").strip()[-500:] or "it printed nothing"
        died = (
            f"signal {-process.returncode}" if process.returncode < 0 else f"exit code {process.returncode}"
        )
        answer["fault"] = f"importing torch ended the interpreter ({died}): {words}"
    return answer


def end_process(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
