"""Which Python of a host runs our programs, where its entry names none."""

from __future__ import annotations

__all__ = ["Interpreter", "environment_folder"]


def environment_folder(workdir: str) -> str:
    """Returns the environment that `orch hosts setup` makes: a link in a work folder."""
    return f"{workdir.rstrip('/')}/env"


class Interpreter(str):
    """The Python of a host whose entry names none: that of an environment there, or this one where there is none.

    `environment` is the environment's folder.
    """

    __slots__ = ("environment",)
    environment: str

    def __new__(cls, otherwise: str, environment: str) -> Interpreter:
        """Takes the interpreter for hosts without the environment, and the environment's folder."""
        made = super().__new__(cls, otherwise)
        made.environment = environment
        return made

    def __reduce__(self) -> tuple[type[Interpreter], tuple[str, str]]:
        return Interpreter, (str(self), self.environment)

    @property
    def both(self) -> str:
        """The two, for a message."""
        return f"{self.environment}/bin/python or {self}"
