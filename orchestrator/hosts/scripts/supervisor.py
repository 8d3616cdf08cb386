"""Asks the supervisor of an installed release: launch, resume, observe, cancel, list; or streams results.

`roots` are release folders in order of preference; the first that is there answers. With `argv` the
supervisor's own words and bytes (the rest of stdin) pass through unchanged; with `send` (a job's folder) and
`have` (name -> hash) the job's results go to stdout, packed.
"""

import os
import sys
import zlib


def import_supervisor(roots):
    """The `remote_payload.supervise` of the first release that is there."""
    for root in roots:
        if os.path.isdir(os.path.join(root, "remote_payload", "supervise")):
            sys.path.insert(0, root)
            import remote_payload.supervise

            return remote_payload.supervise
    raise HostError("no_release", "the payload release of this job is not installed there", roots[0])


def ask_supervisor(arguments):
    """Runs one command and returns its reply, or writes the stream of results."""
    os.environ.update(arguments.get("env") or {})
    sys.dont_write_bytecode = True  # a release holds what was verified, nothing more
    supervise = import_supervisor([expand(root) for root in arguments["roots"]])
    try:
        if "send" in arguments:
            packed = Packed(sys.stdout.buffer)
            supervise.send_job(expand(arguments["send"]), arguments["have"], packed)
            return packed.close()
        return supervise.ask(arguments["argv"], sys.stdin.buffer)
    except supervise.SuperviseError as error:
        raise HostError("supervise", str(error), reason=error.kind) from error
    except supervise.ProtocolError as error:
        raise HostError("supervise", str(error), reason="protocol") from error


class Packed:
    """A stream that packs what is written to it: rows and logs are text, which shrinks to a fraction."""

    def __init__(self, out):
        self.out, self.packer = out, zlib.compressobj(1)
        out.write(b"\norch-packed-1\n")

    def write(self, data):
        self.out.write(self.packer.compress(data))

    def flush(self):
        """Nothing: it is whole when it is closed."""

    def close(self):
        self.out.write(self.packer.flush())
        self.out.flush()
