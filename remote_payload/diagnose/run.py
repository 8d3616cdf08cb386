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
from typing import Any, TextIO

import numpy as np
import torch

from remote_payload.devices import open_device
from remote_payload.diagnose import accounts, templates
from remote_payload.diagnose.acceptance import acceptance_checks
from remote_payload.diagnose.accounts import Check
from remote_payload.diagnose.compared import Compared, compare, mean_nll, pooled
from remote_payload.diagnose.document import document
from remote_payload.diagnose.engines import parity_check
from remote_payload.diagnose.material import Material, gather
from remote_payload.diagnose.probe import Alteration, ProbeDrafter
from remote_payload.diagnose.rules import TAU_FLOOR, Tried, Verdict, judge
from remote_payload.diagnose.statistics import path_statistics
from remote_payload.diagnose.sweep import Measured, measure
from remote_payload.diagnose.variants import Facts, Variant, neighbours
from remote_payload.drafters.checkpoint import Checkpoint, effective_rule, load_checkpoint
from remote_payload.errors import CheckpointError, InputError
from remote_payload.fingerprint import model_hash
from remote_payload.items import continue_prompts
from remote_payload.memory import Room
from remote_payload.plan import Candidate, check_fit, plan_drafter
from remote_payload.prompts import Prompt, Tokenizing, read_prompts
from remote_payload.protocol import Job, write_json
from remote_payload.results import Progress
from remote_payload.sampling import Sampling
from remote_payload.target import Target
from remote_payload.trajectories import Need, TrajectoryStore

__all__ = ["DIAGNOSIS", "diagnose"]

DIAGNOSIS = "diagnosis.json"
_REACTS = 1e-6
"""Mean change of a slot's log-likelihood below which an output does not react."""


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


class _Subject:
    """A drafter that loaded, and the ways to run it."""

    def __init__(self, candidate: Candidate, checkpoint: Checkpoint, facts: Facts) -> None:
        self.candidate, self.checkpoint = candidate, checkpoint
        rule, _ = effective_rule(candidate.config, candidate.convention)
        self.declared, self.variants = neighbours(
            candidate.config,
            candidate.convention,
            candidate.block_size,
            rule,
            facts,
            own_head=checkpoint.own_head is not None,
        )

    @property
    def depth(self) -> int:
        """Drafts a round."""
        return self.candidate.drafts

    def indices(self) -> set[int]:
        """Entries of `hidden_states` that any variant reads."""
        at = self.candidate.config.target_layer_ids
        read: set[int] = set()
        for variant in (self.declared, *self.variants):
            offset = 1 + variant.convention.hidden_index_offset
            read.update(variant.alteration.feature_indices or (layer + offset for layer in at))
        return read


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
            checkpoint = _load(candidate)
            target = self._load_target()
            check_fit(candidate, **_shape_of(target))
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
        subject = _Subject(candidate, checkpoint, facts)
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

    def _reference(self, target: Target, facts: Facts) -> _Subject | None:
        if len(self.job.drafters) < 2:
            return None
        candidate = plan_drafter(self.job.drafters[1], replace(self.job, block_size=None))
        check_fit(candidate, **_shape_of(target))
        return _Subject(candidate, _load(candidate), facts)

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
        self, subject: _Subject, reference: _Subject | None, material: Material, tokenizing: Tokenizing
    ) -> dict[str, Any]:
        declared = self._measure(subject, subject.declared, material)
        self.checks.append(self._numerics(subject, material, declared))
        if declared.not_finite:  # nothing that is not a number can be compared
            verdict = judge(float("nan"), [], _no_comparison, self.checks)
            return document(
                self.job, verdict, self.checks, facts=_facts(subject, material, declared, self._identity)
            )
        self.checks.append(
            parity_check(self._target, self._drafter(subject, subject.declared), material, declared)
        )
        self.checks += acceptance_checks(material, declared, floor=TAU_FLOOR)
        beside = None if reference is None else self._measure(reference, reference.declared, material)
        measured: dict[str, Measured] = {}
        for done, variant in enumerate(subject.variants):
            self.progress.step("sweep", done, len(subject.variants), message=variant.name)
            measured[variant.name] = self._measure(subject, variant, material)
        self.progress.step("sweep", len(subject.variants), len(subject.variants))
        self.checks += self._reactions(subject, material, declared, measured)
        against = _comparing(material, subject.depth)
        gains = (
            {} if reference is None or beside is None else self._reference_gains(reference, beside, material)
        )
        tried = [
            Tried(variant, against(declared, measured[variant.name]), gains.get(variant.name))
            for variant in subject.variants
        ]
        self.checks += self._templates(subject, material, declared, tokenizing)
        verdict = judge(
            pooled(declared.walks(material.ends)),
            tried,
            lambda first, second: against(measured[second.variant.name], measured[first.variant.name]),
            self.checks,
            reference=None
            if reference is None or beside is None
            else _comparing(material, min(subject.depth, reference.depth), relative=True)(beside, declared),
        )
        facts = _facts(subject, material, declared, self._identity)
        facts["statistics"] = path_statistics(material, self._drafter(subject, subject.declared))
        if reference is not None and beside is not None:
            facts["reference"] = {
                **_facts(reference, material, beside, self._identity)["declared"],
                "label": reference.candidate.spec.label,
                "statistics": path_statistics(material, self._drafter(reference, reference.declared)),
            }
        return document(self.job, verdict, self.checks, tried=tried, facts=facts)

    def _drafter(self, subject: _Subject, variant: Variant, dtype: torch.dtype | None = None) -> ProbeDrafter:
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
        self, subject: _Subject, variant: Variant, material: Material, dtype: torch.dtype | None = None
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

    def _reference_gains(self, reference: _Subject, beside: Measured, material: Material) -> dict[str, float]:
        """Returns what the reference gains from each variant that sound drafters may gain from."""
        against = _comparing(material, reference.depth)
        shared = [one for one in reference.variants if one.slug in {"anchor_in_context", "block_size"}]
        return {
            one.name: against(beside, self._measure(reference, one, material)).gain.delta for one in shared
        }

    # ------------------------------------------------------------------ checks that need measurements

    def _numerics(self, subject: _Subject, material: Material, declared: Measured) -> Check:
        name, slots = self.job.target.dtype, sum(part.size for part in declared.nll)
        if declared.not_finite:
            return Check(
                "numerics",
                "fault",
                f"{declared.not_finite} of {slots} slots have NaN or infinite logits in {name}; run it in bfloat16 or "
                "float32",
                {"not_finite": declared.not_finite, "overflow": name == "float16"},
            )
        other = torch.float32 if self._target.dtype != torch.float32 else torch.bfloat16
        compared = _comparing(material, subject.depth)(
            declared, self._measure(subject, subject.declared, material, other)
        )
        said = (
            f"in {str(other).removeprefix('torch.')} instead of {name} the drafter's tau is {compared.tau:.3f} "
            f"({compared.tau_change.delta:+.3f})"
        )
        better = compared.gain.low > 0.04
        state = "fault" if better and other == torch.float32 else "ok"
        return Check("numerics", state, said, {"tau": compared.tau, "gain": compared.gain.delta})

    def _reactions(
        self, subject: _Subject, material: Material, declared: Measured, measured: dict[str, Measured]
    ) -> list[Check]:
        """The output has to move when the context, the anchor's token or the mask's row is another one."""
        anchor = replace(subject.declared, alteration=Alteration(anchor_changed=True))
        inputs = {"the anchor's token is another one": self._measure(subject, anchor, material)}
        for words, slug, value in (
            ("the context is shuffled", "context_order", "shuffled"),
            ("the mask's row is zero", "mask_token", "zero"),
        ):
            one = next(
                (v for v in subject.variants if v.slug == slug and v.parameters.get("value") == value), None
            )
            if one is not None:
                inputs[words] = measured[one.name]
        moves = {words: _moved(declared, other) for words, other in inputs.items()}
        dead = [words for words, move in moves.items() if move < _REACTS]
        said = "; ".join(f"{move:.2g} nats where {words}" for words, move in moves.items())
        if dead:
            return [Check("reaction", "fault", f"the output does not move where {', '.join(dead)}", moves)]
        return [Check("reaction", "ok", f"the output moves: {said}", moves)]

    def _templates(
        self, subject: _Subject, material: Material, declared: Measured, tokenizing: Tokenizing
    ) -> list[Check]:
        others = templates.renderings(tokenizing, self.prompts, self.job.enable_thinking)
        if not others:
            return []
        names = [prompt.id for prompt in next(iter(others.values()))]
        places = [
            place
            for place, item in enumerate(material.items)
            if item.prompt.id in names and item.prompt.turn == 0
        ]
        walks = declared.walks(material.ends)
        lists = {}
        for name, prompts in others.items():
            thinking = (name == "thinking on") if name.startswith("thinking") else self.job.enable_thinking
            other = Tokenizing(self._target.tokenizer(), self._target.vocab_size, enable_thinking=thinking)
            firsts = [replace(prompt, turns=prompt.turns[:1]) for prompt in prompts]
            rendered = self._material(other, firsts, material.need, subject.indices())
            lists[name] = self._measure(subject, subject.declared, rendered).walks(rendered.ends)
        return templates.template_checks([walks[place] for place in places], lists)


def _load(candidate: Candidate) -> Checkpoint:
    return load_checkpoint(
        candidate.folder,
        forgive=candidate.spec.forgive,
        draft_config=candidate.draft_config,
        unchanged_since=candidate.stamps,
    )


def _shape_of(target: Target) -> dict[str, Any]:
    return {
        "num_layers": target.num_layers,
        "hidden_size": target.hidden_size,
        "vocab_size": target.vocab_size,
        "embed": lambda token: target.embed(torch.tensor(token, device=target.device)),
    }


def _comparing(
    material: Material, depth: int | None, *, relative: bool = False
) -> Callable[[Measured, Measured], Compared]:
    clusters = [item.prompt.id for item in material.items]

    def against(base: Measured, other: Measured) -> Compared:
        return compare(base, other, material.ends, clusters, depth=depth, relative=relative)

    return against


def _no_comparison(_first: Tried, _second: Tried) -> Compared:
    raise RuntimeError("there is nothing to compare")


def _moved(first: Measured, second: Measured) -> float:
    """Mean absolute change of the true tokens' log-likelihood, nats."""
    changes = [
        np.abs(np.minimum(a, 50.0) - np.minimum(b, 50.0)) for a, b in zip(first.nll, second.nll, strict=True)
    ]
    return float(np.nanmean(np.concatenate([change.ravel() for change in changes])))


def _facts(
    subject: _Subject, material: Material, measured: Measured, identity: dict[str, Any]
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
