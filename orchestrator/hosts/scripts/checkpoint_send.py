# needs files checkpoint_torch checkpoint_origin
"""Sends the files of a checkpoint as one tar stream on stdout; a file that is not as promised ends it."""


def run(arguments):
    import tarfile

    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", bufsize=PIECE) as archive:
        for name, size, origin in arguments["files"]:
            with open_origin(origin) as stream:
                if origin_size(origin, stream) != size:
                    raise HostError(
                        "checkpoint", f"{name} changed since it was looked at", origin_file(origin) or name
                    )
                member = tarfile.TarInfo(name)
                member.size = size
                archive.addfile(member, stream)


def origin_size(origin, stream):
    if "torch" in origin:
        return stream.size
    return os.fstat(stream.fileno()).st_size if "file" in origin else len(stream.getvalue())
