"""What a checkpoint costs by replay, against a plain speculative loop, the live engine, and the published method.

One run, the same prompts and the shipped trained pair, chain and two tree budgets, with one thread and with
two; everything is timed in turn, several times, and medians are compared:

* `later_checkpoint_vs_plain_loop`: plain loop, prompt by prompt (`plain_loop.py`) / replay, where the target's
  continuations and features are there already: the checkpoint is read, its contexts prepared, all walks made;
* `later_checkpoint_vs_live`: the same against the payload's own live engine;
* `first_checkpoint_vs_reference_method`: plain decoding and the plain loop, prompt by prompt, as the published
  benchmark does both / replay with everything: continuations, features, walks;
* `live_round_vs_plain_loop`: time per round of the live engine / of the plain loop (lower is better).

All acceptance lists have to agree, or there is no result. It also says where replay's time goes, and what share
of it the drafter's own arithmetic would take if all its anchors were known beforehand (one pass over them).
Usage: `python -m benchmarks.replay [REPEATS] [PROMPTS]`. The last line printed is one line of JSON.
"""

from __future__ import annotations

import cProfile
import json
import os
import platform
import pstats
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import plain_loop
from remote_payload.drafters.checkpoint import load_checkpoint
from remote_payload.drafters.convention import Convention
from remote_payload.drafters.dflash import DFlashDrafter
from remote_payload.engines.live import LiveDecoder, make_verifier
from remote_payload.engines.replay import ReplayBatch, Walked
from remote_payload.features import Captured, capture_features
from remote_payload.items import Item, batches
from remote_payload.prompts import Tokenized, Tokenizing, prompt_hash, read_prompts
from remote_payload.results import Silent
from remote_payload.sampling import Sampling
from remote_payload.shapes import parse_shapes
from remote_payload.target import Target
from remote_payload.trajectories import Need, Start, extend

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "examples" / "tiny"
DRAFTER = TINY / "drafter-b8-final"
BUDGETS = (8, 32)
SHAPES = ("chain", *(f"ddtree:{budget}" for budget in BUDGETS))
TOKENS = 128
BATCH = 16384
Lists = dict[str, list[list[int]]]


class Bench:
    """The pair and the prompts, and each way of evaluating them."""

    def __init__(self, prompts: int) -> None:
        self.target = Target(TINY / "target-tiny", dtype="float32", device=torch.device("cpu"))
        tokenizing = Tokenizing(self.target.tokenizer(), self.target.vocab_size)
        chosen = tokenizing.first_turns(read_prompts(TINY / "prompts.jsonl", prompts))
        self.prompts = [list(prompt.ids) for prompt in chosen]
        self.stops = frozenset(self.target.stop_ids())
        self.plain = plain_loop.Drafter(DRAFTER)
        self.plain_target = plain_loop.Target(TINY / "target-tiny", self.plain.layers)
        self.shapes = parse_shapes(list(SHAPES))
        self.need = Need(TOKENS, self.stops, self.plain.block - 1)
        self.items, self.captured = self._of_the_target()

    def _of_the_target(self) -> tuple[list[Item], Captured]:
        starts = [Start(tuple(ids)) for ids in self.prompts]
        made = extend(self.target, starts, self.need, Sampling(), store=None, batch_tokens=BATCH)
        items = [Item(Tokenized("", "", 0, t.prompt, prompt_hash(t.prompt)), t) for t in made]
        indices = [layer + 1 for layer in self.plain.layers]
        captured = capture_features(
            self.target, items, indices, Sampling(), batch_tokens=BATCH, progress=Silent()
        )
        return items, captured

    def _drafter(self) -> DFlashDrafter:
        checkpoint = load_checkpoint(DRAFTER)
        return DFlashDrafter(
            checkpoint,
            Convention(),
            block_size=checkpoint.config.block_size,
            embed=self.target.embed,
            device=self.target.device,
            dtype=self.target.dtype,
        )

    # ------------------------------------------------------------------ the ways

    def later(self) -> Lists:
        """Replay of a further checkpoint: what the target determines is there."""
        drafter = self._drafter()
        walked: dict[Start, dict[str, Walked]] = {}
        for batch in batches(self.items, BATCH):
            features = self.captured.of(batch, drafter.feature_indices)
            trajectories = [item.trajectory for item in batch]
            replay = ReplayBatch(drafter, trajectories, features, self.target.head, self.target.vocab_size)
            for item, walks in zip(batch, replay.walk(self.shapes, self.need), strict=True):
                walked[item.trajectory.start] = walks
        return {
            name: [walked[item.trajectory.start][name].accept_lengths for item in self.items]
            for name in SHAPES
        }

    def first(self) -> Lists:
        """Replay of a first checkpoint: continuations and features included."""
        self.items, self.captured = self._of_the_target()
        return self.later()

    def live(self) -> Lists:
        """The payload's live engine, prompt by prompt, shape by shape."""
        verifier = make_verifier(self.target, trees=True)
        decoder = LiveDecoder(verifier, self._drafter(), self.target.head, self.target.vocab_size, Sampling())
        return {
            shape.name: [
                decoder.decode(Start(tuple(ids)), shape, self.need).accept_lengths for ids in self.prompts
            ]
            for shape in self.shapes
        }

    def loop(self) -> Lists:
        """The plain speculative loop, prompt by prompt, shape by shape."""
        return {
            name: [
                plain_loop.speculate(
                    self.plain_target,
                    self.plain,
                    ids,
                    max_new_tokens=TOKENS,
                    stops=set(self.stops),
                    budget=budget,
                )
                for ids in self.prompts
            ]
            for name, budget in zip(SHAPES, (0, *BUDGETS), strict=True)
        }

    def plain_decoding(self) -> Lists:
        """Plain decoding of every output, one token a step: the published benchmark's other half."""
        for item in self.items:
            count = self.need.output_length(item.trajectory.tokens)
            plain_loop.decode_plainly(self.plain_target, list(item.trajectory.prompt), count)
        return {}

    def arithmetic(self) -> Lists:
        """The drafter's own work if every anchor of every shape were known: contexts once, one pass of blocks."""
        drafter = self._drafter()
        for batch in batches(self.items, BATCH):
            features = self.captured.of(batch, drafter.feature_indices)
            trajectories = [item.trajectory for item in batch]
            replay = ReplayBatch(drafter, trajectories, features, self.target.head, self.target.vocab_size)
            requests = sorted(
                {
                    (row, anchor)
                    for row, item in enumerate(batch)
                    for anchor in self.anchors[item.trajectory.start]
                }
            )
            self.target.head(replay.hidden(requests))
        return {}

    def note_anchors(self, lists: Lists) -> None:
        """Remembers at which generated indices any shape's rounds start."""
        self.anchors: dict[Start, set[int]] = {item.trajectory.start: set() for item in self.items}
        for found in lists.values():
            for item, lengths in zip(self.items, found, strict=True):
                anchor = 0
                for length in lengths:
                    self.anchors[item.trajectory.start].add(anchor)
                    anchor += length


def timed(work: Callable[[], Lists]) -> tuple[float, Lists]:
    """Runs something once; returns its wall time and its lists."""
    started = time.perf_counter()
    lists = work()
    return time.perf_counter() - started, lists


def measure(bench: Bench, threads: int, repeats: int) -> dict[str, Any]:
    """Times every way `repeats` times, in turn; returns medians and ratios."""
    torch.set_num_threads(threads)
    expected = bench.loop()
    for way in (bench.later, bench.live, bench.first):
        spent, found = timed(way)
        print(
            f"{threads} thread(s): {way.__name__} agrees with the plain loop ({spent:.1f} s)", file=sys.stderr
        )
        assert found == expected, f"{way.__name__} and the plain loop differ"
    bench.note_anchors(expected)
    ways = (bench.loop, bench.later, bench.live, bench.first, bench.plain_decoding, bench.arithmetic)
    seconds: dict[str, list[float]] = {way.__name__: [] for way in ways}
    for _ in range(repeats):
        for way in ways:
            spent, _ = timed(way)
            print(f"{threads} thread(s): {way.__name__} {spent:.2f} s", file=sys.stderr)
            seconds[way.__name__].append(spent)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    rounds = sum(len(lengths) for lists in expected.values() for lengths in lists)
    ratios = {
        "later_checkpoint_vs_plain_loop": medians["loop"] / medians["later"],
        "later_checkpoint_vs_live": medians["live"] / medians["later"],
        "first_checkpoint_vs_reference_method": (medians["plain_decoding"] + medians["loop"])
        / medians["first"],
        "live_round_vs_plain_loop": medians["live"] / medians["loop"],
        "arithmetic_share_of_later": medians["arithmetic"] / medians["later"],
    }
    return {"rounds": rounds, "medians": medians, "ratios": ratios}


def profile(bench: Bench) -> list[str]:
    """Returns where a further checkpoint's time goes: the functions that take the most themselves."""
    profiler = cProfile.Profile()
    profiler.runcall(bench.later)
    stats: Any = pstats.Stats(profiler)
    total = stats.total_tt
    rows = sorted(((entry[2], name) for name, entry in stats.stats.items()), reverse=True)[:8]
    return [f"{100 * own / total:5.1f} %  {Path(where).name}:{name}" for own, (where, _, name) in rows]


def main() -> None:
    """Measures and prints."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    prompts = int(sys.argv[2]) if len(sys.argv) > 2 else 12
    torch.set_grad_enabled(False)
    bench = Bench(prompts)
    results = {threads: measure(bench, threads, repeats) for threads in (1, 2)}
    for threads, result in results.items():
        print(
            f"\n{threads} thread(s), {len(bench.prompts)} prompts, {TOKENS} tokens, {result['rounds']} rounds"
        )
        for name, value in result["medians"].items():
            print(f"  {name:16} {value:8.3f} s   {1000 * value / result['rounds']:7.3f} ms/round")
        for name, value in result["ratios"].items():
            print(f"  {name:40} {value:6.2f}")
    torch.set_num_threads(1)
    print("\nwhere a further checkpoint's time goes (own time, one thread):")
    for line in profile(bench):
        print(f"  {line}")
    suffix = {1: "", 2: "_2_threads"}
    print(
        json.dumps(
            {
                "benchmark": "replay",
                "ratios": {
                    name + suffix[t]: round(value, 3)
                    for t, r in results.items()
                    for name, value in r["ratios"].items()
                },
                "medians_s": {
                    name + suffix[t]: round(value, 4)
                    for t, r in results.items()
                    for name, value in r["medians"].items()
                },
                "n": repeats,
                "machine": {
                    "python": platform.python_version(),
                    "torch": torch.__version__,
                    "system": platform.platform(),
                    "cores": os.cpu_count(),
                },
            },
            sort_keys=True,
        )
    )


if __name__ == "__main__":
    main()
