"""A wrong inventory is refused with file, line, what is allowed and the nearest match; a right one is typed."""

from __future__ import annotations

import contextlib
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ConfigError, UnknownNameError
from orchestrator.inventory import Inventory, find_inventory, load_inventory
from tests.conftest import REPO

GOOD = """\
schema: orch/inventory/1
defaults: {target: tiny, suite: quick, baseline: reference}
hosts:
  gw: {address: bastion.example, port: 2222, user: ana}
  gpu7:
    address: 10.0.0.7
    gateway: gw
    roles: [inference, training]
    gpus: [0, GPU-aabb]
    env: {HF_HUB_OFFLINE: "1"}
    connect_timeout: 3
  box: {sandbox: box, roles: [training]}
targets:
  tiny: {path: ~/models/tiny, paths: {box: /m/tiny}, dtype: float32}
  only: {paths: {box: /m/only}}
baselines:
  reference: {ckpt: "gpu7:/data/ref"}
drafters:
  mine: {ckpt: drafts/mine, convention: {block_position_offset: 1}, target: tiny}
suites:
  quick: {prompts: p.jsonl, shapes: [chain, "ddtree:8", "topk:4"], stop_token_ids: [0], temperature: 1}
sandbox:
  box: {models/tiny: examples/tiny}
"""


def load(tmp_path: Path, text: str | bytes) -> Inventory:
    file = tmp_path / "inventory.yaml"
    file.write_bytes(text if isinstance(text, bytes) else dedent(text).encode())
    return load_inventory(file)


def test_the_shipped_inventory_is_right() -> None:
    inventory = load_inventory(REPO / "inventory.yaml")
    assert [host.name for host in inventory.hosts_with_role("inference")] == ["ct129"]
    assert inventory.target().name == "tiny"
    assert inventory.suite().shapes[0] == "chain"
    assert inventory.baseline().ckpt.startswith("examples/")
    assert set(inventory.seeds) == {"ct129", "ct200"}


def test_a_right_file_becomes_typed_values_with_defaults(tmp_path: Path) -> None:
    inventory = load(tmp_path, GOOD)
    gpu7 = inventory.host("gpu7")
    assert (gpu7.gateway, gpu7.gpus, gpu7.env) == ("gw", (0, "GPU-aabb"), {"HF_HUB_OFFLINE": "1"})
    assert (gpu7.port, gpu7.workdir, gpu7.python, gpu7.connect_timeout) == (None, "~/orch", "python3", 3.0)
    box = inventory.host("box")
    assert inventory.target_path(inventory.target(), gpu7) == "~/models/tiny"
    assert inventory.target_path(inventory.target(), box) == "/m/tiny"
    assert inventory.checkpoint("mine") is inventory.drafters["mine"]
    assert inventory.checkpoint("no-such") is None
    assert inventory.suite("quick").temperature == 1.0
    assert inventory.resolve("p.jsonl") == tmp_path / "p.jsonl"
    assert inventory.resolve("~/x") == Path.home() / "x"
    with pytest.raises(ConfigError) as caught:
        inventory.target_path(inventory.target("only"), gpu7)
    assert "'only' has no path on host 'gpu7'" in caught.value.message


BAD = [
    ("unknown section", "host:\n  a: {address: x}\n", 1, ["unknown key", "did you mean 'hosts'"]),
    (
        "unknown host key",
        "hosts:\n  a:\n    address: x\n    rolse: [training]\n",
        4,
        ["did you mean 'roles'", "workdir"],
    ),
    (
        "wrong role",
        "hosts:\n  a:\n    address: x\n    roles: [train]\n",
        4,
        ["'train'", "did you mean 'training'"],
    ),
    ("number as text", 'hosts:\n  a:\n    address: x\n    port: "22"\n', 4, ["whole number", "'22'"]),
    ("boolean as number", "hosts:\n  a:\n    address: x\n    port: yes\n", 4, ["whole number", "true"]),
    ("port out of range", "hosts:\n  a:\n    address: x\n    port: 70000\n", 4, ["<= 65535", "70000"]),
    ("number for text", "hosts:\n  a:\n    address: 7\n", 3, ["must be text", "put it in quotes"]),
    ("env value not text", "hosts:\n  a:\n    address: x\n    env:\n      N: 1\n", 5, ["env.N", "quotes"]),
    ("env name", 'hosts:\n  a:\n    address: x\n    env: {"A-B": "1"}\n', 4, ["'A-B'"]),
    ("neither address nor sandbox", "hosts:\n  a: {roles: []}\n", 2, ["address", "sandbox"]),
    ("address and sandbox", "hosts:\n  a: {address: x, sandbox: a}\n", 2, ["sandbox decides address"]),
    ("relative workdir", "hosts:\n  a:\n    address: x\n    workdir: orch\n", 4, ["absolute"]),
    (
        "interpreter below the home",
        "hosts:\n  a:\n    address: x\n    python: ~/env/bin/python\n",
        4,
        ["absolute"],
    ),
    ("an option as address", 'hosts:\n  a: {address: "-oProxyCommand=x"}\n', 2, ["dash"]),
    ("same GPU twice", "hosts:\n  a:\n    address: x\n    gpus: [1, 1]\n", 4, ["twice"]),
    ("launcher", "hosts:\n  a:\n    address: x\n    launcher: proces\n", 4, ["did you mean 'process'"]),
    ("host name", 'hosts:\n  "a b": {address: x}\n', 2, ["'a b' is not a name"]),
    ("numeric name", "hosts:\n  200: {address: x}\n", 2, ["key must be text", "quotes"]),
    ("duplicate host", "hosts:\n  a: {address: x}\n  a: {address: y}\n", 3, ["'a' is here twice", "line 2"]),
    ("duplicate key", "hosts:\n  a:\n    address: x\n    address: y\n", 4, ["'address' is here twice"]),
    ("duplicate section", "hosts: {}\ntargets: {}\nhosts: {}\n", 3, ["'hosts' is here twice"]),
    ("host is not a mapping", "hosts:\n  a: x\n", 2, ["hosts.a: must be a mapping"]),
    ("section is a list", "hosts: [a]\n", 1, ["hosts: must be a mapping"]),
    (
        "unknown gateway",
        "hosts:\n  gw1: {address: x}\n  a: {address: x, gateway: gw}\n",
        3,
        ["did you mean 'gw1'"],
    ),
    ("gateway to itself", "hosts:\n  a: {address: x, gateway: a}\n", 2, ["circle: a -> a"]),
    (
        "gateway circle",
        "hosts:\n  a: {address: x, gateway: b}\n  b: {address: x, gateway: a}\n",
        2,
        ["a -> b -> a"],
    ),
    (
        "default target",
        "defaults: {target: tinny}\ntargets:\n  tiny: {path: /t}\n",
        1,
        ["did you mean 'tiny'"],
    ),
    (
        "default suite, none at all",
        "defaults:\n  suite: quick\n",
        2,
        ["no suite 'quick'", "no suite is defined"],
    ),
    ("target without path", "targets:\n  t: {dtype: float32}\n", 2, ["path"]),
    ("dtype", "targets:\n  t:\n    path: /t\n    dtype: float23\n", 4, ["did you mean 'float32'"]),
    ("path on an unknown host", "targets:\n  t: {paths: {ct: /t}}\n", 2, ["no host 'ct'"]),
    ("checkpoint without ckpt", "baselines:\n  b: {convention: {}}\n", 2, ["ckpt", "is required"]),
    (
        "checkpoint on an unknown host",
        'hosts:\n  ct200: {address: x}\ndrafters:\n  d: {ckpt: "ct20:/x"}\n',
        4,
        ["ct200"],
    ),
    ("one name for two checkpoints", "baselines: {x: {ckpt: a}}\ndrafters:\n  x: {ckpt: b}\n", 3, ["unique"]),
    ("shape", 'suites:\n  s:\n    prompts: p\n    shapes: ["ddtree8"]\n', 4, ["'ddtree8'", "ddtree:N"]),
    ("shape of size zero", 'suites:\n  s:\n    prompts: p\n    shapes: ["topk:0"]\n', 4, ["'topk:0'"]),
    ("limit", "suites:\n  s:\n    prompts: p\n    max_new_tokens: 0\n", 4, [">= 1", "found 0"]),
    ("not a number", "suites:\n  s:\n    prompts: p\n    temperature: .nan\n", 4, ["temperature"]),
    ("seed leaves the home", "hosts: {a: {sandbox: a}}\nsandbox:\n  a: {../x: y}\n", 3, ["'../x'"]),
    ("seed for nobody", "hosts: {ct1: {sandbox: ct1}}\nsandbox:\n  ct2: {x: y}\n", 3, ["did you mean 'ct1'"]),
    ("schema", "schema: orch/inventory/9\n", 1, ["orch/inventory/1"]),
    ("empty", "", 1, ["empty"]),
    ("only a comment", "# nothing\n", 1, ["empty"]),
    ("a list", "- a\n", 1, ["mapping of sections"]),
    ("not YAML", "hosts:\n  a: {address: x\ntargets: {}\n", 3, ["not valid YAML"]),
    ("tab", "hosts:\n\ta: x\n", 2, ["not valid YAML"]),
    ("control character", "hosts:\n  a: \x07\n", 2, ["U+0007"]),
    ("tag", "hosts:\n  a: !!python/object/apply:os.getcwd []\n", 2, ["must be a mapping"]),
    ("scalar tag", "hosts:\n  a:\n    address: !!python/name:os.getcwd x\n", 3, ["not valid YAML"]),
    ("self-containing alias", "hosts: &h\n  a: *h\n", 1, ["alias"]),
    ("impossible date", "hosts:\n  a:\n    address: 2024-99-99\n", 3, ["quotes"]),
    ("two documents", "hosts: {}\n---\nhosts: {}\n", 2, ["not valid YAML"]),
]


@pytest.mark.parametrize(("text", "line", "words"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_a_wrong_file_names_line_and_remedy(tmp_path: Path, text: str, line: int, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    problems = {problem["line"]: problem["problem"] for problem in caught.value.details["problems"]}
    assert line in problems, caught.value.message
    assert f"inventory.yaml:{line}: " in caught.value.message
    for word in words:
        assert word in problems[line]
    assert caught.value.exit_code == 3
    assert caught.value.hint


def test_bytes_that_are_not_utf8_name_their_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, b"hosts:\n  a: {address: x}\n  b: {address: \xff}\n")
    assert "inventory.yaml:3: not UTF-8" in caught.value.message


def test_all_problems_come_at_once_in_the_order_of_lines(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(
            tmp_path,
            "targets:\n  t: {pth: /x}\nhosts:\n  a: {address: 1, prot: 3}\n  b: {address: x, gateway: c}\n",
        )
    lines = [problem["line"] for problem in caught.value.details["problems"]]
    assert lines == sorted(lines)
    assert set(lines) == {2, 4, 5}
    assert "problems" in caught.value.message.splitlines()[0]


def test_a_rejected_entry_does_not_make_its_references_wrong_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "hosts:\n  gw: {address: 1}\n  a: {address: x, gateway: gw}\n")
    assert [problem["line"] for problem in caught.value.details["problems"]] == [2]


def test_a_merge_key_shares_settings_and_own_ones_win(tmp_path: Path) -> None:
    text = "hosts:\n  a: &a {address: x, user: u, port: 1}\n  b: {<<: *a, port: 2}\n"
    b = load(tmp_path, text).host("b")
    assert (b.address, b.user, b.port) == ("x", "u", 2)


def test_aliases_of_aliases_do_not_exhaust_memory(tmp_path: Path) -> None:
    levels = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 12))
    with pytest.raises(ConfigError):
        load(tmp_path, "l0: &l0 [x]\n" + levels)


@given(st.binary(max_size=400))
def test_no_bytes_lead_to_anything_but_an_inventory_or_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzzed.yaml"
    file.write_bytes(raw)
    with contextlib.suppress(ConfigError):
        assert isinstance(load_inventory(file), Inventory)


def test_unknown_names_list_what_there_is(tmp_path: Path) -> None:
    inventory = load(tmp_path, GOOD)
    for look_up, near in ((inventory.host, "gpu7"), (inventory.target, "tiny"), (inventory.suite, "quick")):
        with pytest.raises(ConfigError) as caught:
            look_up(near + "x")
        assert f"did you mean {near!r}" in caught.value.message


def test_without_a_default_the_error_says_how_to_name_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "hosts: {a: {address: x}}").target()
    assert "--target" in caught.value.hint


def test_the_nearest_parent_wins_and_the_config_folder_is_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    (config / "orch").mkdir(parents=True)
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config))
    monkeypatch.chdir(deep)
    with pytest.raises(ConfigError) as caught:
        load_inventory()
    assert str(config) in caught.value.message
    (config / "orch" / "inventory.yaml").write_text("hosts: {}\n")
    assert find_inventory() == config / "orch" / "inventory.yaml"
    (tmp_path / "inventory.yaml").write_text("hosts: {}\n")
    assert find_inventory() == tmp_path / "inventory.yaml"
    (tmp_path / "a" / "inventory.yaml").write_text("hosts: {}\n")
    assert load_inventory().folder == tmp_path / "a"


@pytest.mark.parametrize("kind", ["missing", "folder"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "x.yaml"
    if kind == "folder":
        file.mkdir()
    with pytest.raises(ConfigError) as caught:
        load_inventory(file)
    assert str(file) in caught.value.message


def test_a_name_that_was_typed_and_is_not_defined_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text("hosts: {gpu: {address: gpu}}\n", encoding="utf-8")
    known = load_inventory(tmp_path / "inventory.yaml")
    for look_up in (known.host, known.target, known.suite, known.baseline):
        with pytest.raises(UnknownNameError) as caught:
            look_up("gpus")
        assert caught.value.exit_code == 2
