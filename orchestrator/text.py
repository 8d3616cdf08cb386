"""Text from elsewhere made safe to show: model output, remote messages, file names.

`printable` is the one door through which such text reaches a terminal: no control character, escape
sequence or direction override passes it, so that nothing a model says can act on the user's screen.
"""

from __future__ import annotations

import unicodedata

__all__ = ["human_bytes", "human_seconds", "printable"]

_NAMES = {"\n": "⏎", "\t": "⇥", "\r": "␍"}
_DIRECTION = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def printable(text: str, *, keep_newlines: bool = False) -> str:
    """Returns text in which every control, format and unassigned character is shown, not obeyed."""
    if text.isprintable():  # no character of any category below, and no newline
        return text
    shown = []
    for char in text:
        if keep_newlines and char == "\n":
            shown.append(char)
        elif char in _NAMES:
            shown.append(_NAMES[char])
        elif char in _DIRECTION or unicodedata.category(char) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}:
            code = ord(char)
            shown.append(f"\\x{code:02x}" if code < 256 else f"\\u{{{code:x}}}")
        else:
            shown.append(char)
    return "".join(shown)


def human_bytes(count: float) -> str:
    """Returns a size for people: 512 B, 1.4 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def human_seconds(seconds: float) -> str:
    """Returns a duration for people: 0.8 s, 12 s, 3 min 05 s, 2 h 10 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
