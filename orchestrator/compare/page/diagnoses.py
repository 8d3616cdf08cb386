"""The diagnosis section: what `orch diagnose` said of the compared drafters, in its own words."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from orchestrator.errors import ResultsError
from remote_payload.diagnosis import SOUND, as_text

if TYPE_CHECKING:
    from orchestrator.compare.model import Diagnosis

__all__ = ["Told", "tell"]


class Told(NamedTuple):
    """A diagnosis in words. `sound`: the harness is right for this drafter."""

    label: str
    run: str
    verdict: str
    sound: bool
    sentence: str
    lines: tuple[str, ...]


def tell(diagnosis: Diagnosis) -> Told:
    """Returns a diagnosis in words.

    Raises:
        ResultsError: the document has not what one of its schema has.
    """
    document = diagnosis.record
    try:
        return Told(
            label=diagnosis.label,
            run=diagnosis.run,
            verdict=str(document["verdict"]),
            sound=document["verdict"] in SOUND,
            sentence=str(document["sentence"]),
            lines=tuple(as_text(document).splitlines()),
        )
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        raise ResultsError(
            f"the diagnosis of {diagnosis.label} in run {diagnosis.run} is not as its schema says: {error!r}",
            f"pull it again: `orch runs pull {diagnosis.run}`",
        ) from error
