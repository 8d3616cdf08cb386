"""A diagnosis, from a job's folder to its document: load, continue, measure every variant, judge.

What always holds: a drafter whose files are at fault still gets a document, with the fault as its verdict; what
the target alone determines is computed once, for the drafter, its reference and every variant; the document is the
job's `diagnosis.json`, written once, at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import torch

from remote_payload.devices import open_device
from remote_payload.diagnose import accounts, templates
from remote_payload.diagnose.acceptance import acceptance_checks
from remote_payload.diagnose.accounts import Check
from remote_payload.diagnose.compared import Compared, compare, mean_nll, pooled
from remote_payload.diagnose.document import document
from remote_payload.diagnose.engines import parity_check
from remote_payload.diagnose.evidence import numerics, reactions
from remote_payload.diagnose.material import Material, gather
from remote_payload.diagnose.probe import ProbeDrafter
from remote_payload.diagnose.rules import LEAST_GAINS, TAU_FLOOR, Tried, Verdict, judge
from remote_payload.diagnose.statistics import path_statistics
from remote_payload.diagnose.subject import Subject, load, shape_of
from remote_payload.diagnose.sweep import Measured, measure
from remote_payload.diagnose.variants import Facts, Variant
from remote_payload.durable import write_json
from remote_payload.errors import CheckpointError, InputError
from remote_payload.fingerprint import model_hash
from remote_payload.items import continue_prompts
from remote_payload.memory import Room
from remote_payload.plan import check_fit, plan_drafter
from remote_payload.prompts import Prompt, Tokenizing, read_prompts
from remote_payload.protocol import Job
from remote_payload.results import Progress
from remote_payload.sampling import Sampling
from remote_payload.target import Target
from remote_payload.trajectories import Need, TrajectoryStore

__all__ = ["DIAGNOSIS", "diagnose"]

DIAGNOSIS = "diagnosis.json"


def diagnose(job: Job, folder: Path, cache: Path, echo: TextIO | None = None) -> dict[str, Any]:
    """Runs a job of kind `diagnose` in its folder, and returns its document.

    Args:
        job: drafters[0] is judged; drafters[1], if there is one, is the reference beside it.
        folder: the job's; `diagnosis.json` and events.jsonl are written there.
        cache: the host's cache folder.
        echo: where progress is written too.

    Raises:
        InputError: the prompts, the target or the reference cannot be used.
    """
    progress = Progress(folder, echo)
    if job.temperature != 0:
        raise InputError("diagnose compares variants along greedy continuations; leave the temperature at 0")
    if job.threads:
        torch.set_num_threads(job.threads)
    started = time.perf_counter()
    found = _Diagnosis(job, read_prompts(folder / job.prompts), progress, cache).run()
    found["seconds"] = round(time.perf_counter() - started, 3)
    write_json(folder / DIAGNOSIS, found)
    progress.say(found["sentence"], phase="verdict")
    return found


class _Diagnosis:
    """One run: what it has learnt so far."""

    def __init__(self, job: Job, prompts: Sequence[Prompt], progress: Progress, cache: Path) -> None:
        self.job, self.prompts, self.progress, self.cache = job, prompts, progress, cache
        self.device = open_device(job.device)
        self.room = Room(self.device, progress.say)
        self.checks: list[Check] = []

    def run(self) -> dict[str, Any]:
        """Returns the document."""
        spec = self.job.drafters[0]
        try:
            candidate = plan_drafter(spec, self.job)
            checkpoint = load(candidate)
            target = self._load_target()
            check_fit(candidate, **shape_of(target))
        except CheckpointError as error:
            slug, check = accounts.fault_of(error)
            verdict = Verdict("loading", slug, 0.99, f"not loaded as meant: {check.what}")
            return document(self.job, verdict, [check])
        self._target = target
        if candidate.drafts < 1:
            raise InputError(
                f"{candidate.folder}: a block of {candidate.block_size} drafts nothing, so there is nothing to diagnose; "
                "leave --block-size out, or give 2 or more"
            )
        tokenizing = Tokenizing(
            target.tokenizer(), target.vocab_size, enable_thinking=self.job.enable_thinking
        )
        facts = accounts.target_facts(target, target.tokenizer())
        subject = Subject(candidate, checkpoint, facts)
        self.checks += accounts.tensor_checks(checkpoint)
        self.checks += accounts.config_checks(candidate, target, facts)
        self.checks += accounts.head_checks(checkpoint, target)
        self.checks += accounts.text_checks(target, tokenizing, enable_thinking=self.job.enable_thinking)
        reference = self._reference(target, facts)
        need = self._need(max(subject.depth, reference.depth if reference else 0))
        indices = subject.indices() | (reference.indices() if reference else set())
        material = self._material(tokenizing, self.prompts, need, indices)
        return self._judged(subject, reference, material, tokenizing)

    # ------------------------------------------------------------------ loading

    def _load_target(self) -> Target:
        spec = self.job.target
        folder = Path(spec.path).expanduser()
        self.progress.step("load_target", 0, 1, message=str(folder))
        self._identity = {
            "target": model_hash(folder, self.cache / "hashes.json"),
            "dtype": spec.dtype,
            "attn": spec.attn,
            "device": self.device.type,
            **Sampling().identity(),
        }
        target = Target(
            folder,
            dtype=spec.dtype,
            device=self.device,
            attn=spec.attn,
            trust_remote_code=spec.trust_remote_code,
        )
        self.progress.step("load_target", 1, 1)
        return target

    def _reference(self, target: Target, facts: Facts) -> Subject | None:
        if len(self.job.drafters) < 2:
            return None
        candidate = plan_drafter(self.job.drafters[1], replace(self.job, block_size=None))
        check_fit(candidate, **shape_of(target))
        return Subject(candidate, load(candidate), facts)

    def _need(self, depth: int) -> Need:
        stops = self._target.stop_ids() if self.job.stop_ids is None else self.job.stop_ids
        return Need(self.job.max_new_tokens, frozenset(stops), depth + 1)

    def _material(
        self, tokenizing: Tokenizing, prompts: Sequence[Prompt], need: Need, indices: Iterable[int]
    ) -> Material:
        target, job = self._target, self.job
        items = continue_prompts(
            target,
            tokenizing,
            prompts,
            need,
            Sampling(),
            samples=1,
            store=TrajectoryStore(self.cache / "trajectories", self._identity),
            batch_tokens=job.batch_tokens,
            progress=self.progress,
            room=self.room,
        )
        return gather(
            target,
            items,
            need,
            indices,
            batch_tokens=job.batch_tokens,
            progress=self.progress,
            room=self.room,
        )

    # ------------------------------------------------------------------ measuring

    def _judged(
        self, subject: Subject, reference: Subject | None, material: Material, tokenizing: Tokenizing
    ) -> dict[str, Any]:
        declared = self._measure(subject, subject.declared, material)
        against = _comparing(material, subject.depth)
        self.checks.append(
            numerics(
                declared,
                self._target.dtype,
                lambda dtype: self._measure(subject, subject.declared, material, dtype),
                against,
            )
        )
        facts = _facts(subject, material, declared, self._identity)
        if declared.not_finite:  # nothing that is not a number can be compared
            verdict = judge(float("nan"), [], _no_comparison, self.checks)
            return document(self.job, verdict, self.checks, facts=facts)
        drafter = self._drafter(subject, subject.declared)
        self.checks.append(parity_check(self._target, drafter, material, declared))
        self.checks += acceptance_checks(material, declared, floor=TAU_FLOOR)
        swept = self._sweep(subject, material)
        self.checks.append(
            reactions(declared, subject.declared, lambda v: self._measure(subject, v, material), swept)
        )
        self.checks += self._templates(subject, material, declared, tokenizing)
        beside = self._beside(reference, subject, material, declared)
        tried = [
            Tried(variant, against(declared, measured), beside.gains.get(name))
            for name, (variant, measured) in swept.items()
        ]
        verdict = judge(
            facts["declared"]["tau"],
            tried,
            lambda first, second: against(swept[second.variant.name][1], swept[first.variant.name][1]),
            self.checks,
            reference=beside.compared,
        )
        facts["statistics"] = path_statistics(material, drafter)
        if beside.facts:
            facts["reference"] = beside.facts
        return document(self.job, verdict, self.checks, tried=tried, facts=facts)

    def _sweep(self, subject: Subject, material: Material) -> dict[str, tuple[Variant, Measured]]:
        """Measures every variant: name -> it and what it did."""
        swept = {}
        count = len(subject.variants)
        for done, variant in enumerate(subject.variants):
            self.progress.step("sweep", done, count, message=variant.name)
            swept[variant.name] = (variant, self._measure(subject, variant, material))
        self.progress.step("sweep", count, count)
        return swept

    def _beside(
        self, reference: Subject | None, subject: Subject, material: Material, declared: Measured
    ) -> _Beside:
        """Measures the reference drafter, and what it gains from variants that sound drafters gain from."""
        if reference is None:
            return _Beside({}, None, {})
        own = self._measure(reference, reference.declared, material)
        against = _comparing(material, reference.depth)
        gains = {
            one.name: against(own, self._measure(reference, one, material)).gain.delta
            for one in reference.variants
            if one.slug in LEAST_GAINS
        }
        facts = {
            **_facts(reference, material, own, self._identity)["declared"],
            "label": reference.candidate.spec.label,
            "statistics": path_statistics(material, self._drafter(reference, reference.declared)),
        }
        shared = min(subject.depth, reference.depth)
        return _Beside(gains, _comparing(material, shared, relative=True)(own, declared), facts)

    def _templates(
        self, subject: Subject, material: Material, declared: Measured, tokenizing: Tokenizing
    ) -> list[Check]:
        """Renders a few prompts otherwise, continues them and walks them."""
        others = templates.renderings(tokenizing, self.prompts, self.job.enable_thinking)
        if not others:
            return []
        names = [prompt.id for prompt in next(iter(others.values()))]
        walks = declared.walks(material.ends)
        first = [
            walks[place]
            for place, item in enumerate(material.items)
            if item.prompt.id in names and item.prompt.turn == 0
        ]
        lists = {}
        for name, prompts in others.items():
            thinking = (name == "thinking on") if name.startswith("thinking") else self.job.enable_thinking
            other = Tokenizing(self._target.tokenizer(), self._target.vocab_size, enable_thinking=thinking)
            turns = [replace(prompt, turns=prompt.turns[:1]) for prompt in prompts]
            rendered = self._material(other, turns, material.need, subject.indices())
            lists[name] = self._measure(subject, subject.declared, rendered).walks(rendered.ends)
        return templates.template_checks(first, lists)

    def _drafter(self, subject: Subject, variant: Variant, dtype: torch.dtype | None = None) -> ProbeDrafter:
        return ProbeDrafter(
            subject.checkpoint,
            variant.convention,
            variant.alteration,
            block_size=variant.block_size,
            embed=self._target.embed,
            device=self.device,
            dtype=dtype or self._target.dtype,
        )

    def _measure(
        self, subject: Subject, variant: Variant, material: Material, dtype: torch.dtype | None = None
    ) -> Measured:
        return measure(
            material,
            self._drafter(subject, variant, dtype),
            label_offset=variant.label_offset,
            depth=subject.depth,
            head=self._target.head,
            vocab_size=self._target.vocab_size,
            room=self.room,
        )


class _Beside(NamedTuple):
    """A reference drafter on the same material.

    gains: what it gains from a variant, by name; compared: the subject against it; facts: for the document.
    """

    gains: dict[str, float]
    compared: Compared | None
    facts: dict[str, Any]


def _comparing(
    material: Material, depth: int, *, relative: bool = False
) -> Callable[[Measured, Measured], Compared]:
    clusters = [item.prompt.id for item in material.items]

    def against(base: Measured, other: Measured) -> Compared:
        return compare(base, other, material.ends, clusters, depth=depth, relative=relative)

    return against


def _no_comparison(_first: Tried, _second: Tried) -> Compared:
    raise RuntimeError("there is nothing to compare")


def _facts(
    subject: Subject, material: Material, measured: Measured, identity: dict[str, Any]
) -> dict[str, Any]:
    candidate = subject.candidate
    slots = material.anchors * candidate.block_size
    config = candidate.config
    weights = sum(tensor.numel() for tensor in subject.checkpoint.tensors.values())
    return {
        "declared": {
            "tau": pooled(measured.walks(material.ends)),
            "nll": mean_nll(measured.nll, subject.depth),
            "entropy": measured.entropy,
            "convention": candidate.recorded_convention,
            "block_size": candidate.block_size,
        },
        "prompts": len({item.prompt.id for item in material.items}),
        "anchors": material.anchors,
        "target_hash": identity["target"],
        "cost": {
            "passes": len(subject.variants) + 4,
            "slots_per_pass": slots,
            "flop_per_pass": 2 * slots * (weights + config.hidden_size * config.vocab_size),
        },
    }
