# needs files checkpoint_torch checkpoint_origin checkpoint_config
"""Looks at a drafter's folder: what belongs to it, whether it is whole and still, and its hashes.

What always holds: links are followed once, at the start, and everything after that is of one folder; the
files are those that the payload's own reader takes (safetensors with their config before a raw training
state) and nothing else; a file that changed while it was looked at is refused as unfinished. Tensors are not
judged: that is for the reader.
"""

import contextlib
import struct
import time

CONFIG_NAMES = ("config.json", "draft_config.json", "draft_model_config.json")
YOUNG_S = 2.0
SETTLE_S = 0.5


def shards(folder):
    """The files that hold the tensors, and per file the tensors that the index promises in it."""
    index = os.path.join(folder, "model.safetensors.index.json")
    if os.path.isfile(index):
        where = read_json(index, "model.safetensors.index.json").get("weight_map")
        if (
            not isinstance(where, dict)
            or not where
            or not all(isinstance(name, str) for name in where.values())
        ):
            refuse(
                "the index has no weight_map of tensor names to files", index, "export the checkpoint again"
            )
        promised = {}
        for tensor, name in where.items():
            if not safe_path(name) or "/" in name:
                refuse(
                    f"the index names a file outside its folder: {name!r}",
                    index,
                    "export the checkpoint again",
                )
            promised.setdefault(name, []).append(tensor)
        return ["model.safetensors.index.json"], promised
    if os.path.isfile(os.path.join(folder, "model.safetensors")):
        return [], {"model.safetensors": []}
    others = sorted(
        n for n in os.listdir(folder) if n.endswith((".safetensors", ".pt", ".bin", ".pth", ".tmp"))
    )
    there = f"; it has {', '.join(others[:5])}" if others else ""
    return unfinished(
        f"no model.safetensors (and no index of shards, and no {STATE}){there}",
        folder,
        "export the drafter as model.safetensors with its config.json; if training is still writing it, ",
    )


def check_safetensors(path, promised):
    """Reads a header and compares it with the file's size: a cut-off or unfinished file does not pass."""
    size = os.stat(path).st_size
    with open(path, "rb") as stream:
        head = stream.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if not 2 <= length <= min(size - 8, MOST_JSON):
            unfinished(f"truncated, or not a safetensors file ({size} bytes)", path)
        try:
            header = json.loads(stream.read(length))
            spans = [entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"]
            ends = [end for start, end in spans if 0 <= start <= end]
        except (ValueError, TypeError, KeyError, AttributeError):
            unfinished("its safetensors header cannot be read", path)
    if not ends or len(ends) != len(spans):
        refuse(
            "its safetensors header lists no tensors, or impossible ones", path, "export the checkpoint again"
        )
    whole = 8 + length + max(ends)
    if size < whole:
        unfinished(f"truncated: {size} bytes, its header promises {whole}", path)
    if size > whole:
        unfinished(
            f"{size} bytes, its header promises only {whole}",
            path,
            "export it again; if it is still being written, ",
        )
    absent = sorted(set(promised) - set(header))
    if absent:
        unfinished(f"the index promises {', '.join(absent[:5])} in this file, which it does not hold", path)


def safetensors_layout(folder):
    """The files of a folder with safetensors: staged name -> origin."""
    config = os.path.join(folder, "config.json")
    check_config(read_json(config, "config.json"), config)
    names, promised = shards(folder)
    for name in sorted(promised):
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            unfinished(f"{name} is in the index but not there", path)
        check_safetensors(path, promised[name])
    return {name: {"file": os.path.join(folder, name)} for name in ["config.json", *names, *sorted(promised)]}


def training_state_layout(folder, given):
    """The files that a raw training state is staged as: staged name -> origin."""
    config = {"text": given} if given is not None else {"file": config_beside(folder)}
    where = "--draft-config" if given is not None else config["file"]
    record = (
        parse_json(given.encode(), "the draft config", where)
        if given is not None
        else read_json(where, where)
    )
    check_config(record, where)
    state = {"torch": os.path.join(folder, STATE)}
    with open_origin(state) as drafter:
        if not drafter.names:
            refuse(f"{DRAFT} is empty", state["torch"], "export the drafter from the training run")
    return {"config.json": config, "model.safetensors": state}


def config_beside(folder):
    for parent in (folder, os.path.dirname(folder)):
        for name in CONFIG_NAMES:
            path = os.path.join(parent, name)
            if os.path.isfile(path):
                record = read_json(path, name)  # the trainer's own config may have the same name
                if "hidden_size" in record and "num_hidden_layers" in record:
                    return path
    return refuse(
        f"{STATE} holds a drafter's tensors, but no config of the drafter is there or in the folder above "
        f"({', '.join(CONFIG_NAMES)} with hidden_size and num_hidden_layers)",
        folder,
        "name the config that training used with --draft-config FILE",
    )


def settle(origins):
    """The stamps of a drafter's files, which have to be the same over two looks if they are young."""
    paths = sorted({origin_file(origin) for origin in origins.values()} - {None})
    first = {path: stamp(os.path.realpath(path)) for path in paths}
    newest = max(entry[1] for entry in first.values()) / 1e9
    if time.time() - newest < YOUNG_S:
        time.sleep(SETTLE_S)
        unchanged(first)
    return first


def unchanged(stamps):
    for path, before in stamps.items():
        if not os.path.exists(path) or stamp(os.path.realpath(path)) != before:
            unfinished(f"{os.path.basename(path)} changed while it was looked at", path)


def inspect(path, given):
    folder = os.path.realpath(path)
    if not os.path.exists(folder):
        parent = os.path.dirname(path)
        there = sorted(os.listdir(parent))[-5:] if os.path.isdir(parent) else []
        beside = f"; beside it: {', '.join(there)}" if there else ""
        refuse(
            f"there is no such checkpoint{beside}",
            path,
            "check the path; a glob such as step_* finds folders",
        )
    if not os.path.isdir(folder):
        refuse("not a folder", folder, "name the folder that holds config.json and model.safetensors")
    has = set(os.listdir(folder))
    raw = STATE in has and not has & {"model.safetensors", "model.safetensors.index.json"}
    origins = training_state_layout(folder, given) if raw else safetensors_layout(folder)
    if "orch.json" in has:
        origins["orch.json"] = {"file": os.path.join(folder, "orch.json")}
    stamps = settle(origins)
    files = {name: origin_entry(origin) for name, origin in origins.items()}
    with open_origin(origins["config.json"]) as stream:
        config = json.loads(stream.read(MOST_JSON))
    convention = declared(folder) if "orch.json" in has else {}
    unchanged(stamps)
    return {
        "path": path,
        "real_path": folder,
        "files": files,
        "hash": tree_hash(files),
        "config": config,
        "convention": convention,
        "used_draft_config": raw and given is not None,
    }


def declared(folder):
    path = os.path.join(folder, "orch.json")
    convention = read_json(path, "orch.json").get("convention", {})
    if not isinstance(convention, dict):
        refuse("convention is not an object", path, 'write {"convention": {"KEY": VALUE}}')
    return convention


def age(folder):
    """Seconds since anything in a folder changed, by this machine's clock."""
    paths = [folder]
    with contextlib.suppress(OSError):
        paths += [os.path.join(folder, name) for name in os.listdir(folder)]
    newest = 0.0
    for path in paths:
        with contextlib.suppress(OSError):
            newest = max(newest, os.lstat(path).st_mtime)
    return time.time() - newest


def run(arguments):
    folder = expand(arguments["path"])
    try:
        try:
            return inspect(folder, arguments.get("draft_config"))
        except PermissionError as error:
            refuse(
                f"cannot be read ({error.strerror})",
                error.filename or folder,
                "give your user there the right to read it",
            )
        except FileNotFoundError as error:
            unfinished("a file vanished while it was looked at", error.filename or folder)
    except HostError as failure:
        if failure.record.get("unfinished"):
            failure.record["age_s"] = age(os.path.realpath(folder))
        raise
