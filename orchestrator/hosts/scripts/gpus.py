# needs gpu_look
"""Tells which GPUs a host has, who leased them, who else computes there, and who is in line. Changes nothing."""


def run(arguments):
    """Looks at the GPUs and the locks, with the environment that jobs have."""
    os.environ.update(arguments["env"])
    return gpu_answer(arguments)
