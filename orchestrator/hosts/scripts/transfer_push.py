# needs transfer_frames
"""Sends chunks of a checkpoint's files to another host by this one's ssh program, on one connection or a few.

What always holds: stdout says `connected` once every connection stands (the key is of no use any more then, and is
removed here), then `sent N` as bytes have left, and in the end what each receiver answered. Whatever happens, no ssh
program of ours and no file of ours is left.
"""

import contextlib
import re
import subprocess
import threading
import time

GREETING = b"orch-receives\n"
GREETING_S = 20
SAY_EVERY_S = 0.1  # each word crosses a link and wakes whoever reads there


def run(arguments):
    import shutil

    for name in ("SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), _stop)
    lanes = []
    try:
        try:
            lanes.extend(Lane(arguments, spans) for spans in arguments["lanes"])
            for lane in lanes:
                lane.greet()
        finally:
            shutil.rmtree(arguments["folder"], ignore_errors=True)
        say("connected")
        threads = [
            threading.Thread(target=lane.feed, args=(arguments["files"],), daemon=True) for lane in lanes
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for lane in lanes:
            answer = lane.answer()
            if answer:
                say(answer)
        failures = [lane.failure for lane in lanes if lane.failure is not None]
        if failures:
            raise failures[0]
    finally:
        for lane in lanes:
            lane.end()


SAYING = threading.Lock()


def say(words):
    with SAYING:
        sys.stdout.write(words + "\n")
        sys.stdout.flush()


class Lane:
    """One ssh program, and the receiver behind it."""

    def __init__(self, arguments, spans):
        self.spans, self.failure = spans, None
        self.process = subprocess.Popen(
            [*ssh_words(arguments), arguments["command"]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        widen(self.process.stdin.fileno())
        self.errors = b""
        self.listener = threading.Thread(target=self.listen, daemon=True)
        self.listener.start()

    def listen(self):
        for line in self.process.stderr:
            self.errors = (self.errors + line)[-2000:]

    def greet(self):
        """Waits for the receiver's first word."""
        timer = threading.Timer(GREETING_S, self.process.kill)
        timer.daemon = True
        timer.start()
        try:
            for line in self.process.stdout:  # past what a login shell prints
                if line == GREETING:
                    return
        finally:
            timer.cancel()
        self.process.wait()
        self.listener.join(1)
        why = self.errors.decode("utf-8", "replace").strip() or "nothing answered there"
        raise HostError("unreachable", f"its ssh was not let in: {why}")

    def feed(self, files):
        stdin = self.process.stdin
        sent, said = 0, time.monotonic()
        try:
            for piece in frames(files, self.spans):
                stdin.write(piece)
                sent += len(piece) if len(piece) > FRAME.size else 0
                if sent and time.monotonic() - said > SAY_EVERY_S:
                    say(f"sent {sent}")
                    sent, said = 0, time.monotonic()
        except BrokenPipeError:  # the receiver gave up, or the link broke: its answer tells which
            pass
        except HostError as failure:
            self.failure = failure
        except OSError as error:
            record = classify(error, "")
            self.failure = HostError(record.pop("kind"), record.pop("message"), **record)
        if sent:
            say(f"sent {sent}")
        with contextlib.suppress(BrokenPipeError):
            stdin.close()

    def answer(self):
        """The receiver's answer, or nothing if the link broke."""
        lines = [line.decode("utf-8", "replace").strip() for line in self.process.stdout]
        self.process.wait()
        self.listener.join(1)
        found = [line for line in lines if line.startswith(ANSWER)]
        if not found and self.failure is None:
            words = re.sub(r"\s+", " ", self.errors.decode("utf-8", "replace")).strip()
            self.failure = HostError("cut", f"its ssh ended: {words or self.process.returncode}")
        return found[-1] if found else ""

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def ssh_words(arguments):
    folder = arguments["folder"]
    options = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "UpdateHostKeys": "no",
        "UserKnownHostsFile": os.path.join(folder, "known_hosts"),
        "GlobalKnownHostsFile": "none",
        "HostKeyAlias": arguments["known_as"],
        "ClearAllForwardings": "yes",
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "ControlPath": "none",
        "Ciphers": arguments["ciphers"],
        "Compression": "no",
        "ConnectTimeout": "10",
        "ServerAliveInterval": "5",
        "ServerAliveCountMax": "2",
        "LogLevel": "ERROR",
        "PreferredAuthentications": "publickey",
    }
    if arguments["own_key"]:
        options["IdentityFile"] = os.path.join(folder, "key")
        options["IdentitiesOnly"], options["IdentityAgent"] = "yes", "none"
    else:
        options["IdentityFile"] = "none"
    words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    place = ["-l", arguments["user"], "-p", str(arguments["port"])]
    return ["ssh", "-F", "none", "-T", *words, *place, "--", arguments["address"]]
