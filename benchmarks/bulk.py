"""How fast a checkpoint gets to a host, and from host to host, against rsync over the same links in the same run.

What is timed of ours is the delivery, its hashing and the sync to disk included, with the ssh session that it opens for
itself; the look at the source, which reads and hashes it once, is shown apart. rsync has whole files to copy (`-W`), no
checksum asked for and no sync. Each host is a real sshd in a network namespace; without delay they are joined by the
kernel's own pairs, with it by wires.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from orchestrator import checkpoints
from orchestrator.checkpoints import Checkpoint, CheckpointRef
from orchestrator.errors import LinkError
from orchestrator.hosts.endpoint import Endpoint
from orchestrator.hosts.ssh import SshHost
from orchestrator.inventory import HostEntry, Inventory
from tests.orchestrator.netns import Lab, lab

__all__ = ["run"]

WAYS = ("upload", "download", "host_to_host")
DELAYS = {"": 0.0, "_50ms": 25.0}  # one way
CUT_AT = 0.9
CONFIG = {
    "block_size": 8,
    "vocab_size": 264,
    "dflash_config": {"mask_token_id": 258, "target_layer_ids": [1, 3]},
}


class Bulk:
    """A desk, a host that trains and one that evaluates, each joined with each, and a checkpoint."""

    def __init__(self, folder: Path, place: Lab, delay_ms: float, mib: int) -> None:
        self.folder, self.place, self.mib = folder, place, mib
        join = place.wire if delay_ms else lambda a, b, _: place.pair(a, b)
        for a, b in (("desk", "gpu"), ("desk", "train"), ("train", "gpu")):
            join(a, b, delay_ms)
        self.gpu, self.train = (place.serve(name, settings=self._keys(name)) for name in ("gpu", "train"))
        (folder / "gpu" / "home" / ".ssh").mkdir()
        route = ["ip", "-n", place.namespace("train"), "route", "add", f"{self.gpu.address}/32"]
        subprocess.run([*route, "via", place.address("train", "gpu")], check=True)
        self.source = folder / "step_1000"
        self._write()
        self.count = 0

    def _keys(self, name: str) -> str:
        home = self.folder / name
        return f"AuthorizedKeysFile {home}/authorized_keys {home}/home/.ssh/authorized_keys"

    def _write(self) -> None:
        size = self.mib << 20
        self.source.mkdir()
        (self.source / "config.json").write_text(json.dumps(CONFIG))
        head = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
        with (self.source / "model.safetensors").open("wb") as stream:
            stream.write(struct.pack("<Q", len(head)) + head)
            for number in range(self.mib):
                stream.write(random.Random(number).randbytes(1 << 20))  # noqa: S311

    # ----------------------------------------------------------------------- rsync

    def rsync(self, way: str) -> float:
        """Copies the folder by rsync and returns the seconds."""
        target = self._fresh()
        # Between hosts it runs on the source, as for a person who has a key there.
        inside = ["ip", "netns", "exec", self.place.namespace("train")] if way == "host_to_host" else []
        there = f"{self.gpu.user}@{self.gpu.address}:"
        words = [f"{self.source}/", f"{there}{target}/"]
        if way == "download":
            words = [f"{there}{self.source}/", f"{target}/"]
        argv = [*inside, "rsync", "-a", "-W", "-e", self._ssh(self.gpu), *words]
        started = time.perf_counter()
        subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
        seconds = time.perf_counter() - started
        shutil.rmtree(target)
        return seconds

    def _ssh(self, end: Endpoint) -> str:
        options = [
            "-F",
            "none",
            "-i",
            str(end.identity_files[0]),
            "-o",
            f"UserKnownHostsFile={end.known_hosts[0]}",
        ]
        return shlex.join(["ssh", *options])

    def _fresh(self) -> Path:
        self.count += 1
        return self.folder / f"copy-{self.count}"

    # ----------------------------------------------------------------------- ours

    def ours(self, way: str, looks: list[float]) -> float:
        """Delivers the checkpoint by orch and returns the seconds; `looks` gets those of the look before."""
        target = self._fresh()
        with closing(SshHost(self.gpu)) as gpu, closing(SshHost(self.train)) as train:
            host = {"upload": None, "download": gpu, "host_to_host": train}[way]
            started = time.perf_counter()
            checkpoint = self.look(host)
            looks.append(time.perf_counter() - started)
            gpu.connect()
            entry = self.entry(target, one_off_key=way == "host_to_host")
            started = time.perf_counter()
            if way == "download":
                checkpoints.fetch(checkpoint, gpu, sys.executable, target)
            else:
                said: list[str] = []
                checkpoints.stage(checkpoint, host, sys.executable, gpu, entry, report=said.append)
                assert not said, said
            seconds = time.perf_counter() - started
        shutil.rmtree(target)
        return seconds

    def look(self, host: SshHost | None) -> Checkpoint:
        """Looks at the checkpoint where it lies."""
        name = host.name if host else None
        hosts = {n: HostEntry(name=n, address="unused", python=sys.executable) for n in ("gpu", "train")}
        book = Inventory(path=self.folder / "inventory.yaml", folder=self.folder, hosts=hosts)
        return checkpoints.inspect(book, CheckpointRef("c", name, str(self.source), "step_1000"), host)

    def entry(self, work: Path, **settings: bool) -> HostEntry:
        """The evaluating host with a work folder of its own."""
        return HostEntry(name="gpu", address="unused", workdir=str(work), python=sys.executable, **settings)

    def resumed(self) -> float:
        """Cuts the connection at nine tenths and goes on. Returns the share of the bytes that the second try sent."""
        target = self._fresh()
        checkpoint = self.look(None)
        entry = self.entry(target)
        first = SshHost(self.gpu)

        def cut(done: int, total: int) -> None:
            if done >= CUT_AT * total:
                first.close()

        try:
            checkpoints.stage(checkpoint, None, sys.executable, first, entry, cut)
        except LinkError:
            pass
        else:
            raise AssertionError("it was not cut")
        before = self._passed()
        with closing(SshHost(self.gpu)) as again:
            checkpoints.stage(checkpoint, None, sys.executable, again, entry)
        shutil.rmtree(target)
        return (self._passed() - before) / checkpoint.size

    def _passed(self) -> int:
        """Bytes that have left the desk, by its interfaces' own count."""
        argv = ["ip", "-n", self.place.namespace("desk"), "-s", "-j", "link"]
        links = json.loads(subprocess.run(argv, check=True, capture_output=True).stdout)
        return sum(int(link["stats64"]["tx"]["bytes"]) for link in links if link["ifname"] != "lo")


def measure(bulk: Bulk, runs: int, suffix: str) -> tuple[dict[str, float], dict[str, float]]:
    """Times each way and rsync in turn. Returns ratios of throughput (ours to rsync's) and medians in seconds."""
    ratios: dict[str, float] = {}
    medians: dict[str, float] = {}
    for way in WAYS:
        times: dict[str, list[float]] = {"rsync": [], "orch": []}
        looks: list[float] = []
        for _ in range(runs):
            times["rsync"].append(bulk.rsync(way))
            times["orch"].append(bulk.ours(way, looks))
            os.sync()
        rsync, ours = (statistics.median(times[name]) for name in ("rsync", "orch"))
        ratios[f"{way}_vs_rsync{suffix}"] = rsync / ours
        medians |= {f"{way}_rsync{suffix}": rsync, f"{way}_orch{suffix}": ours}
        medians[f"{way}_look{suffix}"] = statistics.median(looks)
        print(
            f"{way + suffix:<20} {bulk.mib} MiB: rsync {bulk.mib / rsync:6.0f} MiB/s, orch {bulk.mib / ours:6.0f} MiB/s"
            f" (the look before it {statistics.median(looks):.2f} s)",
            flush=True,
        )
    return ratios, medians


def run(mib: int, runs: int) -> tuple[dict[str, float], dict[str, float]]:
    """Measures without and with delay, and the resumption. Returns ratios and medians in seconds."""
    ratios: dict[str, float] = {}
    medians: dict[str, float] = {}
    for suffix, delay in DELAYS.items():
        with tempfile.TemporaryDirectory() as name, lab(Path(name)) as place, place.at():
            bulk = Bulk(Path(name), place, delay, mib)
            found, seconds = measure(bulk, runs, suffix)
            ratios |= found
            medians |= seconds
            if not suffix:
                ratios["resume_bytes_fraction"] = bulk.resumed()
    return ratios, medians


if __name__ == "__main__":  # by itself, and smaller: python -m benchmarks.bulk MIB RUNS
    for key, value in run(int(sys.argv[1]), int(sys.argv[2]))[0].items():
        print(f"{key:<28} {value:6.2f}")
