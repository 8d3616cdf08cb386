"""The drafter inside a training state of torch.save: where each of its tensors lies in the file.

What always holds: the pickle is read, never run. Its opcodes are decoded by pickletools and interpreted here
over plain values; the only callables it may name are those of torch tensors, and each is an entry of a table
that builds a description. Anything else refuses the file, by name, before a tensor is looked at. Of the
optimizer not a byte is read but the pickle's bookkeeping.
"""

STATE = "training_state.pt"
DRAFT = "draft_state_dict"
MOST_PICKLE = 256 << 20

STORAGES = {
    "DoubleStorage": ("F64", 8),
    "FloatStorage": ("F32", 4),
    "HalfStorage": ("F16", 2),
    "BFloat16Storage": ("BF16", 2),
    "LongStorage": ("I64", 8),
    "IntStorage": ("I32", 4),
    "ShortStorage": ("I16", 2),
    "CharStorage": ("I8", 1),
    "ByteStorage": ("U8", 1),
    "BoolStorage": ("BOOL", 1),
}


class UnsafeError(Exception):
    """The pickle names something that is no tensor or plain value, or is broken."""


class Mark:
    """The place on the stack where a collection begins."""


class Named:
    """A global that the pickle names: only its name, nothing is imported."""

    def __init__(self, name):
        self.name = name


class Opaque:
    """A value that is allowed but not needed: a device, bytes."""

    def __init__(self, arguments):
        pass


class TensorAt:
    """A tensor's type, shape and place: bytes `offset` ... `offset + size` of the record `key`."""

    def __init__(self, storage, offset, shape, stride):
        if not isinstance(storage, StorageAt):
            raise UnsafeError("a tensor without a storage")
        numbers = [offset, *shape, *stride]
        if len(shape) != len(stride) or any(type(n) is not int or n < 0 for n in numbers):
            raise UnsafeError("a tensor of an impossible shape")
        self.key, self.dtype, self.item = storage.key, storage.dtype, storage.item
        self.shape = list(shape)
        count = 1
        contiguous = True
        for length, step in zip(reversed(shape), reversed(stride), strict=True):
            contiguous = contiguous and (length == 1 or step == count)
            count *= length
        self.contiguous = contiguous or count == 0
        self.offset, self.size = offset * self.item, count * self.item
        if self.contiguous and self.offset + self.size > storage.size:
            raise UnsafeError("a tensor reaches past its storage")


class StorageAt:
    """A storage: the record `key` of the file, of `size` bytes."""

    def __init__(self, identity):
        if not isinstance(identity, tuple) or len(identity) != 5 or identity[0] != "storage":
            raise UnsafeError("an unknown kind of persistent object")
        _, kind, key, _, count = identity
        name = kind.name.rpartition(".")[2] if isinstance(kind, Named) else ""
        if not isinstance(key, str) or not key.isalnum() or type(count) is not int or count < 0:
            raise UnsafeError("a storage of an impossible name or size")
        self.key = key
        # A type that is not in the table may stand in the optimizer; in the drafter it is refused by name.
        self.dtype, self.item = STORAGES.get(name, (name, 1))
        self.size = count * self.item


def _tensor(arguments):
    storage, offset, shape, stride = arguments[:4]
    return TensorAt(storage, offset, tuple(shape), tuple(stride))


BUILDERS = {
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": lambda arguments: arguments[0],
    "collections.OrderedDict": lambda arguments: dict(*arguments),
    "torch.Size": lambda arguments: tuple(*arguments),
    "torch.device": Opaque,
    "_codecs.encode": Opaque,
}
DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
HARMLESS = {"torch." + name for name in (*STORAGES, *DTYPES)} | {
    "torch." + name
    for name in ("UntypedStorage", "storage.UntypedStorage", "Float8_e4m3fnStorage", "Float8_e5m2Storage")
}


def named(module, name):
    full = f"{module}.{name}"
    if full not in BUILDERS and full not in HARMLESS:
        raise UnsafeError(f"it names {full}, which is neither a tensor nor a plain value")
    return Named(full)


CONSTANTS = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False, "MARK": Mark,
    "EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_SET": list,
}  # fmt: skip
LITERALS = {
    "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE",
    "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "INT", "LONG", "FLOAT", "UNICODE",
    "BINSTRING", "SHORT_BINSTRING", "STRING",
}  # fmt: skip
SILENT = {"PROTO", "FRAME"}


def pairs(items):
    return dict(zip(items[::2], items[1::2], strict=True))


def fill(collection, items):
    if isinstance(collection, dict):
        collection.update(pairs(items))
    else:
        collection.extend(items)


class Reader:
    """Interprets a pickle over plain values. One method a family of opcodes; an unknown opcode is refused."""

    def __init__(self):
        self.stack, self.memo = [], {}

    def read(self, data):
        import pickletools

        try:
            for opcode, argument, _ in pickletools.genops(data):
                if opcode.name == "STOP":
                    return self.stack.pop()
                self.step(opcode.name, argument)
        except (IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise UnsafeError(f"its pickle is broken ({error})") from error
        raise UnsafeError("its pickle has no end")

    def step(self, name, argument):
        stack = self.stack
        if name in LITERALS:
            stack.append(argument)
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name]())
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(self.memo[int(argument)])
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            self.memo[int(argument)] = stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif name == "GLOBAL":
            stack.append(named(*argument.split(" ", 1)))
        elif name == "STACK_GLOBAL":
            last = stack.pop()
            stack.append(named(stack.pop(), last))
        elif name == "BINPERSID":
            stack.append(StorageAt(stack.pop()))
        elif name not in SILENT:
            self.combine(name)

    def combine(self, name):
        """The opcodes that take values off the stack."""
        stack = self.stack
        if name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            stack[-count:] = [tuple(stack[-count:])]
        elif name in ("TUPLE", "LIST", "DICT"):
            items = self.to_mark()
            stack.append({"TUPLE": tuple, "LIST": list, "DICT": pairs}[name](items))
        elif name in ("APPENDS", "ADDITEMS", "SETITEMS"):
            items = self.to_mark()
            fill(stack[-1], items)
        elif name in ("APPEND", "SETITEM"):
            count = 1 if name == "APPEND" else 2
            items = stack[-count:]
            del stack[-count:]
            fill(stack[-1], items)
        elif name in ("REDUCE", "NEWOBJ"):
            arguments, build = stack.pop(), stack.pop()
            if not isinstance(build, Named) or build.name not in BUILDERS:
                raise UnsafeError("it calls what is no tensor's builder")
            stack.append(BUILDERS[build.name](arguments))
        elif name == "BUILD":  # attributes of a state dict (its versions); of no use here
            stack.pop()
            if not isinstance(stack[-1], dict):
                raise UnsafeError("it sets attributes of an object")
        else:
            raise UnsafeError(f"it uses {name}, which a file of tensors does not need")

    def to_mark(self):
        place = max(i for i, value in enumerate(self.stack) if isinstance(value, Mark))
        items = self.stack[place + 1 :]
        del self.stack[place:]
        return items


def record_start(stream, info):
    """Where a record's bytes begin: after its local header, whose extra field pads it."""
    import struct

    stream.seek(info.header_offset)
    head = stream.read(30)
    if head[:4] != b"PK\3\4" or info.compress_type != 0 or info.compress_size != info.file_size:
        raise UnsafeError(f"the record {info.filename} is damaged or compressed")
    name, extra = struct.unpack("<HH", head[26:30])
    return info.header_offset + 30 + name + extra


def draft_tensors(path):
    """The drafter's tensors: name -> TensorAt with `start`, its first byte in the file.

    Raises UnsafeError, or zipfile.BadZipFile and EOFError for a file that is not whole.
    """
    import zipfile

    with zipfile.ZipFile(path) as archive, open(path, "rb") as stream:
        records = {info.filename: info for info in archive.infolist()}
        pickles = [name for name in records if name == "data.pkl" or name.endswith("/data.pkl")]
        if len(pickles) != 1 or records[pickles[0]].file_size > MOST_PICKLE:
            raise UnsafeError("it is not a file of torch.save (one data.pkl of at most 256 MiB)")
        base = pickles[0][: -len("data.pkl")]
        if base + "byteorder" in records and archive.read(base + "byteorder") != b"little":
            raise UnsafeError("it was written on a big-endian machine")
        stream.seek(record_start(stream, records[pickles[0]]))
        state = Reader().read(stream.read(records[pickles[0]].file_size))
        if not isinstance(state, dict) or not isinstance(state.get(DRAFT), dict):
            keys = ", ".join(map(str, list(state)[:12])) if isinstance(state, dict) else "no dictionary"
            raise UnsafeError(f"it has no {DRAFT} (it has: {keys})")
        tensors = state[DRAFT]
        for name, tensor in tensors.items():
            check_tensor(name, tensor)
            info = records.get(f"{base}data/{tensor.key}")
            if info is None or tensor.offset + tensor.size > info.file_size:
                raise UnsafeError(f"the data of {name} is not all there")
            tensor.start = record_start(stream, info) + tensor.offset
    return tensors


def check_tensor(name, tensor):
    if not isinstance(name, str) or not isinstance(tensor, TensorAt):
        raise UnsafeError(f"{DRAFT} holds what is no tensor: {name}")
    if tensor.dtype not in {dtype for dtype, _ in STORAGES.values()}:
        raise UnsafeError(f"{name} has a type that is not read ({tensor.dtype})")
    if not tensor.contiguous:
        raise UnsafeError(f"{name} is not contiguous")
