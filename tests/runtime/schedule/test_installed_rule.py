"""Another package adds a decay by an entry point; nothing of skipdec is edited."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from installed_rule import install_rule

from skipdec.engines.errors import EnvironmentMismatchError
from skipdec.runtime.schedule.decays import DECAYS

TEXT = "hold:max=5,min=2,warmup=1,horizon=4,held=2"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packages that are installed for the test; entry points are read anew."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("_added", "_entries"):
        monkeypatch.delitem(vars(DECAYS), name, raising=False)
    monkeypatch.delitem(sys.modules, "holding", raising=False)
    yield tmp_path
    for name in ("_added", "_entries"):
        vars(DECAYS).pop(name, None)


def test_the_command_runs_an_installed_decay(tmp_path: Path) -> None:
    install_rule(tmp_path, "hold = holding:Hold")
    result = subprocess.run(
        [sys.executable, "-m", "skipdec", "schedule", "show", TEXT, "--layers", "6", "--json"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    assert '"held": 2' in result.stdout


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ("hold = holding:Nothing", r"skipdec.decays:hold of holding \| can't be imported"),
        ("hold = holding_not_there", "can't be imported .*fix or uninstall that package"),
        ("hold = holding:dataclass", r"expected a subclass of skipdec\..*\.Decay"),
    ],
)
def test_a_broken_entry_point_is_refused_by_name(path: Path, point: str, message: str) -> None:
    install_rule(path, point)
    with pytest.raises(EnvironmentMismatchError, match=message):
        DECAYS.load("hold")
    assert DECAYS.load("linear").__name__ == "Linear"


def test_an_entry_point_replaces_no_decay_of_ours(path: Path) -> None:
    install_rule(path, "linear = holding:Hold")
    with pytest.warns(RuntimeWarning, match="of holding is ignored: decay 'linear' exists"):
        assert "linear" in list(DECAYS)
    assert DECAYS.load("linear").__name__ == "Linear"
