# needs tree
"""Looks at a drafter's folder: what belongs to it, whether it is whole and still, and its hashes.

What always holds: the files are those that the payload's own reader takes (config.json, orch.json if there,
the index and its shards or model.safetensors) and nothing else; a file that changed while it was read
refuses the checkpoint. Tensors are not looked at: that is for the reader.
"""

import struct

MOST_JSON = 100 << 20


def refuse(message, path, hint):
    raise HostError("checkpoint", message, path, hint=hint)


WAIT = "wait until training has finished writing it, then run this again"


def read_json(path, what):
    try:
        with open(path, "rb") as stream:
            value = json.loads(stream.read(MOST_JSON))
    except FileNotFoundError:
        refuse(
            f"no {what} in this folder",
            path,
            "a drafter is a folder with config.json and model.safetensors; name that folder",
        )
    except ValueError as error:
        refuse(
            f"{what} is not valid JSON ({error})",
            path,
            "mend the file; if it is still being written, " + WAIT,
        )
    if not isinstance(value, dict):
        refuse(f"{what} is not a JSON object", path, "write the file again from the training run")
    return value


def check_config(config, path):
    nested = config.get("dflash_config") or {}
    if not isinstance(nested, dict):
        refuse("dflash_config is not an object", path, "export the config again")

    def find(key):
        return config.get(key) if nested.get(key) is None else nested[key]

    def number(key):
        value = find(key)
        if type(value) is not int or value < 0:
            found = "is missing" if value is None else f"is {value!r}, not a whole number from 0 up"
            refuse(
                f"{key} {found} (in dflash_config or at the top level)",
                path,
                f"set {key} in it as it was in training",
            )
        return value

    if "speculators_model_type" in config:
        refuse(
            "a checkpoint in speculators' format (speculators_model_type), which is not read yet",
            path,
            "export it in the z-lab format: config.json with dflash_config, model.safetensors",
        )
    ids = find("target_layer_ids")
    if ids is None:
        refuse(
            "target_layer_ids is missing (in dflash_config or at the top level), and is not guessed: "
            "the published default is wrong for most checkpoints",
            path,
            "add the list of target layers that training used",
        )
    if not isinstance(ids, list) or not ids or any(type(i) is not int or i < 0 for i in ids):
        refuse(
            f"target_layer_ids is {ids!r}, not a list of layer numbers",
            path,
            "write the list that training used",
        )
    if number("block_size") < 2:
        refuse(
            f"block_size is {find('block_size')!r}; a block has the anchor and at least one draft",
            path,
            "correct block_size",
        )
    mask, vocabulary = number("mask_token_id"), number("vocab_size")
    if mask >= vocabulary:
        refuse(
            f"mask_token_id {mask} is outside the vocabulary (vocab_size {vocabulary})",
            path,
            "set the mask token that training used",
        )


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
    others = sorted(n for n in os.listdir(folder) if n.endswith((".safetensors", ".pt", ".bin", ".pth")))[:5]
    there = f"; it has {', '.join(others)}" if others else ""
    return refuse(
        f"no model.safetensors (and no index of shards){there}",
        folder,
        "if training is still writing it, wait; otherwise export the drafter as model.safetensors",
    )


def check_safetensors(path, promised):
    """Reads a header and compares it with the file's size: a cut-off or unfinished file does not pass."""
    size = os.stat(path).st_size
    with open(path, "rb") as stream:
        head = stream.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if not 2 <= length <= min(size - 8, MOST_JSON):
            refuse(f"truncated, or not a safetensors file ({size} bytes)", path, WAIT)
        try:
            header = json.loads(stream.read(length))
            spans = [entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"]
            ends = [end for start, end in spans if 0 <= start <= end]
        except (ValueError, TypeError, KeyError, AttributeError):
            refuse("its safetensors header cannot be read", path, WAIT)
    if not ends or len(ends) != len(spans):
        refuse(
            "its safetensors header lists no tensors, or impossible ones", path, "export the checkpoint again"
        )
    whole = 8 + length + max(ends)
    if size < whole:
        refuse(f"truncated: {size} bytes, its header promises {whole}", path, WAIT)
    if size > whole:
        refuse(f"{size} bytes, its header promises only {whole}", path, "export the checkpoint again")
    absent = sorted(set(promised) - set(header))
    if absent:
        refuse(
            f"the index promises {', '.join(absent[:5])} in this file, which it does not hold",
            path,
            WAIT,
        )


def hashed(folder, name):
    path = os.path.join(folder, name)
    before = stamp(os.path.realpath(path))
    digest = file_hash(path)
    if stamp(os.path.realpath(path)) != before:
        refuse(f"{name} changed while it was read", path, WAIT)
    return {"size": before[0], "sha256": digest}


def inspect(folder):
    if not os.path.exists(folder):
        parent = os.path.dirname(folder)
        there = sorted(os.listdir(parent))[-5:] if os.path.isdir(parent) else []
        beside = f"; beside it: {', '.join(there)}" if there else ""
        refuse(
            f"there is no such checkpoint{beside}",
            folder,
            "check the path; a glob such as step_* finds folders",
        )
    if not os.path.isdir(folder):
        refuse("not a folder", folder, "name the folder that holds config.json and model.safetensors")
    config = read_json(os.path.join(folder, "config.json"), "config.json")
    check_config(config, os.path.join(folder, "config.json"))
    names, promised = shards(folder)
    declared = {}
    if os.path.isfile(os.path.join(folder, "orch.json")):
        declared = read_json(os.path.join(folder, "orch.json"), "orch.json").get("convention", {})
        if not isinstance(declared, dict):
            refuse(
                "convention is not an object",
                os.path.join(folder, "orch.json"),
                'write {"convention": {"KEY": VALUE}}',
            )
        names.append("orch.json")
    for name in sorted(promised):
        if not os.path.isfile(os.path.join(folder, name)):
            refuse(f"{name} is in the index but not there", os.path.join(folder, name), WAIT)
        check_safetensors(os.path.join(folder, name), promised[name])
    files = {name: hashed(folder, name) for name in ["config.json", *names, *sorted(promised)]}
    return {
        "path": folder,
        "real_path": os.path.realpath(folder),
        "files": files,
        "hash": tree_hash(files),
        "config": config,
        "convention": declared,
    }


def run(arguments):
    folder = expand(arguments["path"])
    try:
        return inspect(folder)
    except PermissionError as error:
        refuse(
            f"cannot be read ({error.strerror})",
            error.filename or folder,
            "give your user there the right to read it",
        )
