"""What a drafter's config has to state before anything of it is sent. The payload's reader judges the rest.

What always holds: nothing is guessed; a message names the key and the file.
"""


def refuse(message, path, hint, **more):
    raise HostError("checkpoint", message, path, hint=hint, **more)


def unfinished(message, path, hint=""):
    """Refuses what a running trainer may still complete: the client may look again."""
    refuse(message, path, hint + WAIT, unfinished=True)


WAIT = "wait until training has finished writing it, then run this again"
MOST_JSON = 100 << 20


def parse_json(data, what, path):
    try:
        value = json.loads(data)
    except ValueError as error:
        unfinished(
            f"{what} is not valid JSON ({error})", path, "mend the file; if it is still being written, "
        )
    if not isinstance(value, dict):
        refuse(f"{what} is not a JSON object", path, "write the file again from the training run")
    return value


def read_json(path, what):
    try:
        with open(path, "rb") as stream:
            data = stream.read(MOST_JSON)
    except FileNotFoundError:
        unfinished(
            f"no {what} in this folder",
            path,
            "a drafter is a folder with config.json and model.safetensors; name that folder, or ",
        )
    return parse_json(data, what, path)


def check_config(config, path):
    nested = config.get("dflash_config") or {}
    if not isinstance(nested, dict):
        refuse("dflash_config is not an object", path, "export the config again")
    places = [nested, config]
    ids_key = "target_layer_ids"
    if "speculators_model_type" in config:
        ids_key = "aux_hidden_state_layer_ids"
        places.append(speculators_part(config, path))

    def find(key):
        return next((place[key] for place in places if place.get(key) is not None), None)

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

    check_layer_ids(find(ids_key), ids_key, path)
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


def speculators_part(config, path):
    """The nested sizes of a checkpoint in speculators' format."""
    kind = config["speculators_model_type"]
    if kind != "dflash":
        refuse(
            f"speculators_model_type is {kind!r}; of speculators' drafters dflash alone is supported",
            path,
            "evaluate a checkpoint of a DFlash drafter",
        )
    nested = config.get("transformer_layer_config")
    if not isinstance(nested, dict):
        refuse("transformer_layer_config is missing or not an object", path, "export the checkpoint again")
    return nested


def check_layer_ids(ids, key, path):
    if ids is None:
        refuse(
            f"{key} is missing (in dflash_config or at the top level), and is not guessed: "
            "the published default is wrong for most checkpoints",
            path,
            "add the list of target layers that training used",
        )
    if not isinstance(ids, list) or not ids or any(type(i) is not int or i < 0 for i in ids):
        refuse(
            f"{key} is {ids!r}, not a list of layer numbers",
            path,
            "write the list that training used",
        )
