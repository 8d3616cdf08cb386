# needs env_place
"""Follows a build: its output as it comes, and how it ended, as one JSON object a line.

What always holds: `{"alive": true}` comes at least every few seconds; the last line is `{"done": …}` or
`{"failed": …}` and is said only once nobody builds any more. Following changes nothing, and may be done by many.
"""

import codecs

ALIVE_SECONDS = 5.0
LOOK_SECONDS = 0.2
PIECE_BYTES = 64 * 1024


def run(arguments):
    """Prints until the build has ended."""
    workdir, name = expand(arguments["workdir"]), arguments["name"]
    said, decoder = time.monotonic(), codecs.getincrementaldecoder("utf-8")("replace")
    with open(log_path(workdir, name), "rb") as log:
        log.seek(arguments["offset"])
        while True:
            ended = not being_built(workdir, name)
            piece = log.read(PIECE_BYTES)
            if piece:
                tell({"log": decoder.decode(piece)})
                said = time.monotonic()
            elif ended:
                break
            elif time.monotonic() - said > ALIVE_SECONDS:
                tell({"alive": True})
                said = time.monotonic()
            else:
                time.sleep(LOOK_SECONDS)
    tell(ending(workdir, name))


def tell(record):
    sys.stdout.write("\n" + json.dumps(record) + "\n")
    sys.stdout.flush()


def being_built(workdir, name):
    """Whether somebody holds the lock for this environment."""
    descriptor = os.open(os.path.join(envs(workdir), ".lock"), os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return builder(workdir).get("name", name) == name
    finally:
        os.close(descriptor)
    return False


def ending(workdir, name):
    record = whole(workdir, name)
    if record is not None:
        return {"done": record}
    failed = read_record(failure_path(workdir, name))
    return {"failed": failed or {"step": "", "message": "the build was killed, or the host was restarted"}}
