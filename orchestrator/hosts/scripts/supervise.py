# needs supervisor
"""Asks about a job, ends it, or streams its results: see `supervisor`."""


def run(arguments):
    """Asks the supervisor."""
    return ask_supervisor(arguments)
