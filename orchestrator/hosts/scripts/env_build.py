"""Builds an environment: makes it, installs torch and the rest, tries it, and puts it to use. Runs detached.

What always holds: the marker is written last, so that whatever ends the build leaves nothing that is taken for whole;
secrets of package sources travel in the environment, never in arguments; a failure says its step and the installer's
last words.
"""

import threading

TAIL = 4000
FULL = ("No space left on device", "Disk quota exceeded", "os error 28", "Errno 28", "Errno 122")
_BUILT_FOR = (
    "import importlib.util, os, runpy; place = importlib.util.find_spec('torch').origin; "
    "print(runpy.run_path(os.path.join(os.path.dirname(place), 'version.py')).get('cuda') or 'cpu')"
)


class StepError(Exception):
    """A step that failed, with the last words of its programs."""

    def __init__(self, step, message, said=""):
        Exception.__init__(self, message)
        self.step, self.said = step, said


class Build:
    """One build, its output going to the log."""

    def __init__(self, workdir, plan, arguments, lock):
        self.workdir, self.plan, self.lock = workdir, plan, lock
        self.texts = {name: arguments[name] for name in ("requirements", "constraints")}
        self.names, self.limit = arguments["names"], arguments["limit"]
        self.folder = env_folder(workdir, plan["name"])
        self.python = os.path.join(self.folder, "bin", "python")
        self.started = time.monotonic()
        self.at, self.heard = "start", bytearray()

    def run(self):
        """Builds all of it and puts it to use."""
        self.settings = for_installers(os.environ, self.plan["uv"])
        sweep_envs(self.workdir)
        remove(self.folder)
        self.step("environment")
        if self.plan["uv"]:
            self.program(self.plan["uv"], "venv", "--no-project", "--python", self.plan["base"], self.folder)
        else:
            self.program(self.plan["base"], "-m", "venv", self.folder)
        for name, text in self.texts.items():
            with open(os.path.join(self.folder, name + ".txt"), "w") as stream:
                stream.write(text)
        if self.plan["torch"]["wanted"]:
            self.step("torch")
            self.install_torch()
        self.step("packages")
        lists = [os.path.join(self.folder, name + ".txt") for name in ("requirements", "constraints")]
        self.program(*self.installer(self.settings), "-r", lists[0], "-c", lists[1])
        self.step("try")
        record = self.tried()
        write_record(os.path.join(self.folder, MARKER), record)
        sync(self.folder)
        use(self.workdir, self.plan["name"])

    def step(self, name):
        self.at, self.heard = name, bytearray()
        self.tell(f"== {name}")

    def tell(self, *words):
        """Writes to the log; on a full disk the build's end says what there is to say."""
        with contextlib.suppress(OSError):
            print(*words, flush=True)

    def program(self, *argv):
        """Runs a program to its end; a StepError has what it said last."""
        code = self.ended_with(argv, self.settings)
        if code:
            raise StepError(self.at, f"{os.path.basename(argv[0])} ended with {code}", self.said())

    def ended_with(self, argv, settings):
        """The exit code of a program, whose words are passed on and kept. It holds the lock as long as it lives."""
        self.tell("$", *argv)
        process = subprocess.Popen(
            argv,
            env=settings,
            cwd=self.workdir,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(self.lock,),
        )
        listener = threading.Thread(target=self.listen, args=(process.stdout,), daemon=True)
        listener.start()
        try:
            code = process.wait(max(1.0, self.limit - (time.monotonic() - self.started)))
        except subprocess.TimeoutExpired as error:
            raise StepError(self.at, f"not done after {self.limit:g} s", self.said()) from error
        finally:
            process.kill()
            process.wait()
            listener.join(5)
        return code

    def listen(self, stream):
        for line in stream:
            self.heard += line
            del self.heard[: -2 * TAIL]
            with contextlib.suppress(OSError):
                os.write(1, line)

    def said(self):
        """The last words of the step's programs."""
        return self.heard[-TAIL:].decode("utf-8", "replace").strip()

    def installer(self, settings):
        if not self.plan["uv"]:
            return [self.python, "-m", "pip", "install"]
        alone = ["--no-index"] if settings.get("UV_NO_INDEX") else []  # uv has no variable for it
        return [self.plan["uv"], "pip", "install", "--compile-bytecode", *alone, "--python", self.python]

    def install_torch(self):
        """Installs torch from the first source that has the build that is wanted."""
        wanted, wrong = self.plan["torch"]["build"], []
        for requirement, index in self.plan["torch"]["attempts"]:
            again = ["--reinstall" if self.plan["uv"] else "--force-reinstall"] if wrong else []
            settings = self.from_index(index)
            code = self.ended_with([*self.installer(settings), *again, requirement], settings)
            if code:
                continue
            found = self.built_for()
            if (found == "cpu") == (wanted == "cpu"):
                return
            wrong.append(found)
            self.tell(f"this torch is built for {found}, and {wanted} is wanted")
        if wrong:
            what = f"the sources have a torch for {wrong[-1]} only, and one for {wanted} is wanted"
            raise StepError(self.at, what, self.said())
        raise StepError(self.at, f"no source has a torch for {wanted} that fits", self.said())

    def from_index(self, index):
        """The environment for an installer that takes everything from one index; the host's own without one."""
        if not index:
            return self.settings
        one = {"PIP_INDEX_URL": index, "PIP_EXTRA_INDEX_URL": index, "UV_DEFAULT_INDEX": index}
        return {**{key: value for key, value in self.settings.items() if key not in UV_INDICES}, **one}

    def built_for(self):
        done = subprocess.run(
            [self.python, "-I", "-c", _BUILT_FOR],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )
        return done.stdout.decode("utf-8", "replace").strip() or "nothing that can be read"

    def tried(self):
        """Imports torch and asks for every package, as a job would; the record of the marker."""
        found = finish_packages(start_packages(self.names, self.python), 300.0)
        torch = found["torch"] or {}
        missing = [name for name, version in found["versions"].items() if version is None]
        if found["fault"] or torch.get("fault") or missing or not found["versions"]:
            why = found["fault"] or torch.get("fault") or f"{', '.join(missing) or 'everything'} is missing"
            raise StepError(self.at, f"the environment does not work: {why}")
        blind = self.plan["driver"] and torch.get("cuda") and not torch["available"]
        for name, version in found["versions"].items():
            self.tell(name, version)
        return {
            "schema": "orch/env/1",
            "name": self.plan["name"],
            "python": self.plan["python"],
            "base": self.plan["base"],
            "packages": found["versions"],
            "cuda": torch.get("cuda") or "",
            "blind": torch["said"] or "it does not say why" if blind else "",
            "installer": "uv" if self.plan["uv"] else "pip",
            "built": round(time.time(), 3),
            "seconds": round(time.monotonic() - self.started, 1),
        }


def failure(build, error):
    """The record of a build that failed, with the figures of a disk that is full."""
    said = getattr(error, "said", "")
    text = f"{error}\n{said}"
    disk = disk_figures(build.workdir)
    full = any(words in text for words in FULL) or disk["free"] < 1 << 20
    record = {
        "step": build.at,
        "message": "it was told to stop"
        if isinstance(error, SystemExit)
        else str(error) or type(error).__name__,
        "said": said,
        "at": round(time.time(), 3),
    }
    return dict(record, disk=disk) if full else record


def build_detached(workdir, plan, arguments, lock):
    """Runs the build in a process of its own session that holds the lock; returns at once where its output begins."""
    log = os.open(
        log_path(workdir, plan["name"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
    )
    offset = os.fstat(log).st_size
    pid = os.fork()
    if pid:
        os.close(log)
        said = {"name": plan["name"], "pid": pid, "since": round(time.time(), 3), "offset": offset}
        os.truncate(lock, 0)
        os.pwrite(lock, json.dumps(said).encode(), 0)
        return offset
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = build_here(workdir, plan, arguments, lock)
    finally:
        os._exit(code)


def build_here(workdir, plan, arguments, lock):
    build = Build(workdir, plan, arguments, lock)
    try:
        build.run()
    except BaseException as error:
        import traceback

        if not isinstance(error, (StepError, SystemExit)):
            traceback.print_exc()
        record = failure(build, error)
        remove(build.folder)
        build.tell(f"== failed at {record['step']}")
        with contextlib.suppress(OSError):  # on a full disk: then the log says it
            write_record(failure_path(workdir, plan["name"]), record)
        return 1
    build.tell("== done")
    return 0
