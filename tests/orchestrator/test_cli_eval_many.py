"""`orch eval --on a,b,c`: checkpoints dealt out, every host its own run and verdict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from orchestrator.cli.eval_many import evaluate_on_many
from orchestrator.errors import UsageError
from orchestrator.evaluation import EvalOptions, Links
from orchestrator.evaluation.deal import deal
from orchestrator.hosts.local import LocalHost
from orchestrator.inventory import load_inventory
from tests.conftest import OrchRun
from tests.orchestrator.desk import Desk
from tests.orchestrator.ssh_servers import free_port

RunOrch = Callable[..., OrchRun]
QUICK = ("--prompt-count", "2", "--max-new-tokens", "16", "--shape", "chain", "--no-baseline")


@pytest.fixture
def lab(sandbox_project: Path, tmp_path: Path) -> Path:
    """The sandbox's project with a second work folder on ct129, and a host that is dead."""
    text = (sandbox_project / "inventory.yaml").read_text()
    assert text.count("hosts:\n") == 1
    more = (
        "  twin: {sandbox: ct129, workdir: ~/twin}\n"
        f"  dead: {{address: 127.0.0.1, port: {free_port()}, connect_timeout: 3}}\n"
    )
    (tmp_path / "inventory.yaml").write_text(text.replace("hosts:\n", "hosts:\n" + more))
    (tmp_path / ".orch").symlink_to(sandbox_project / ".orch")
    return tmp_path


def test_every_checkpoint_goes_to_one_host_in_turn(lab: Path) -> None:
    book = load_inventory(lab / "inventory.yaml")
    options = EvalOptions(ckpts=("ct200:ckpt/step_*",))
    with Links(book) as links:
        shares = deal(options, ["ct129", "twin ", "ct129"], links)
        assert {name: [c.rsplit("_")[-1] for c in share.ckpts] for name, share in shares.items()} == {
            "ct129": ["0000", "0160"],
            "twin": ["0040", "0987"],
        }
        assert [share.on for share in shares.values()] == ["ct129", "twin"]
        only = deal(EvalOptions(ckpts=("ct200:ckpt/step_0040",)), ["ct129", "twin"], links)
        assert list(only) == ["ct129"]
        with pytest.raises(UsageError, match="names no host"):
            deal(options, ["", " "], links)
        with pytest.raises(UsageError, match="did you mean 'twin'"):
            deal(options, ["twim"], links)


def test_ctrl_c_before_the_host_has_said_that_the_job_was_started_names_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    attached: Any = Desk(tmp_path).recorded("many-a")
    attached.submit = interrupted
    monkeypatch.setattr("orchestrator.evaluation.prepare", lambda *_: attached)
    monkeypatch.setattr("orchestrator.evaluation.plan", lambda _, share: share)
    monkeypatch.setattr("orchestrator.evaluation.deal.deal", lambda options, *_: {"box": options})
    monkeypatch.setattr("orchestrator.hosts.open_host", lambda _, name: LocalHost(name))
    book: Any = SimpleNamespace(folder=tmp_path)
    with pytest.raises(typer.Exit) as caught:
        evaluate_on_many(book, EvalOptions(ckpts=("x",), on="box,"), detach=True, as_json=False, quiet=True)
    assert caught.value.exit_code == 130
    assert "orch runs attach many-a" in capsys.readouterr().err


@pytest.mark.slow
def test_each_host_does_its_share_and_a_dead_one_costs_the_others_nothing(
    lab: Path, run_orch: RunOrch
) -> None:
    refs = [word for step in ("0040", "0160", "0987") for word in ("--ckpt", f"ct200:ckpt/step_{step}")]
    done = run_orch("eval", *refs, "--on", "ct129,twin,dead", *QUICK, "--json", cwd=lab, timeout=300)
    assert done.code == 8, done.stderr
    document = done.json()
    assert document["schema"] == "orch/eval-many/1"
    rows = {row["host"]: row for row in document["hosts"]}
    assert (rows["dead"]["exit_code"], rows["dead"]["run"]) == (4, None)
    for name, label in (("ct129", "step_0040"), ("twin", "step_0160")):
        assert rows[name]["state"] == "done"
        assert [drafter["label"] for drafter in rows[name]["drafters"]] == [label]
    assert document["runs"] == [rows["ct129"]["run"], rows["twin"]["run"]]
    compared = run_orch("compare", *document["runs"], "--json", cwd=lab)
    assert compared.code == 0, compared.stderr
