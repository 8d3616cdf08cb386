"""One-position bugs, as edits of the payload's source: what a self-check has to catch."""

from __future__ import annotations

from pathlib import Path

__all__ = ["MUTATIONS", "mutate"]

# name -> (file, text as it is, text as a mistake would leave it)
MUTATIONS: dict[str, tuple[str, str, str]] = {
    "anchor in the context": (
        "drafters/masks.py",
        '_ENDS = {"before_anchor": 0,',
        '_ENDS = {"before_anchor": 1,',
    ),
    "causal block": (
        "drafters/masks.py",
        "return everything.tril() if causal else everything",
        "return everything.tril()",
    ),
    "block positions + 1": (
        "drafters/dflash.py",
        "anchors[:, None] + slots +",
        "anchors[:, None] + 1 + slots +",
    ),
    "block positions - 1": (
        "drafters/dflash.py",
        "anchors[:, None] + slots +",
        "anchors[:, None] - 1 + slots +",
    ),
    "layer + 1": ("drafters/dflash.py", "return [layer + 1 +", "return [layer + 2 +"),
    "layer - 1": ("drafters/dflash.py", "return [layer + 1 +", "return [layer +"),
    "final norm skipped": (
        "drafters/dflash.py",
        'return self._norm(hidden, "norm.weight") if self.convention.final_norm else hidden',
        "return hidden",
    ),
    "wrong rope theta": ("drafters/rope.py", "1.0 / (rope.theta**steps)", "1.0 / (10000.0**steps)"),
    "fc not loaded": (
        "drafters/dflash.py",
        "self._weights = {name: t.to(device, dtype) for name, t in checkpoint.tensors.items()}",
        "self._weights = {n: t if n != 'fc.weight' else t.roll(1, 0) for n, t in checkpoint.tensors.items()}",
    ),
    "hidden norm skipped": (
        "drafters/dflash.py",
        "if self.convention.hidden_norm else hidden",
        "if False else hidden",
    ),
    "labels shifted": ("drafters/dflash.py", "return 1 - self.convention.label_offset", "return 0"),
    "layers reversed": ("features.py", "for index in wanted]", "for index in reversed(wanted)]"),
}


def mutate(tree: Path, name: str) -> None:
    """Applies a mutation to a copy of the payload; the text has to be there exactly once."""
    file, old, new = MUTATIONS[name]
    path = tree / file
    source = path.read_text()
    assert source.count(old) == 1, f"{name}: {file} has {source.count(old)} of {old!r}"
    path.write_text(source.replace(old, new))
