"""draft.json: what ``auto`` stands for, setting it, and files that are damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from hollow_bundles import write_hollow_bundle

from skipdec import BundleError, UsageError, write_draft
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.documents import sealed_text
from skipdec.runtime.drafting.bundle import (
    DraftFile,
    bundle_draft_file,
    draft_resolver,
    read_draft_file,
    recommended_draft,
)
from skipdec.runtime.drafting.config import parse_draft
from skipdec.runtime.opening import OpenOptions
from skipdec.runtime.schedule import ExitSchedule

pytestmark = pytest.mark.usefixtures("own_thread_pools")

ENDS = "own+ends:3,exact=no"  # a hollow bundle runs ONNX Runtime's operators


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_hollow_bundle(tmp_path / "bundle", ExitSchedule.full(6)).path


def damage(path: Path, **changes: Any) -> None:  # noqa: ANN401
    """Change keys of the bundle's draft.json and seal it again."""
    file = path / "draft.json"
    file.write_text(sealed_text(json.loads(file.read_bytes()) | changes))


def test_auto_is_own_until_a_draft_is_set(path: Path) -> None:
    assert str(recommended_draft(EngineBundle.open(path))) == "own"
    write_draft(path, ENDS)
    assert str(recommended_draft(EngineBundle.open(path))) == ENDS
    write_draft(path, "off")
    assert recommended_draft(EngineBundle.open(path)) is None


def test_auto_resolves_to_what_the_bundle_recommends(path: Path) -> None:
    write_draft(path, ENDS)
    bundle = EngineBundle.open(path)
    resolver = draft_resolver(bundle, default="off")
    assert resolver.resolve() is None
    assert resolver.resolve(" Auto ") == parse_draft(ENDS)
    assert OpenOptions(draft="auto").draft == "auto"


def test_a_draft_stays_with_copies_of_the_bundle(path: Path, tmp_path: Path) -> None:
    write_draft(path, ENDS)
    copy = EngineBundle.open(path).save(tmp_path / "copy")
    assert bundle_draft_file(copy) == DraftFile(parse_draft(ENDS))


def test_a_file_of_fit_keeps_its_measurement(path: Path, tmp_path: Path) -> None:
    found = DraftFile(parse_draft(ENDS), {"gain": 2.5, "acceptance": {"ends": 0.9}})
    file = tmp_path / "draft.json"
    file.write_text(sealed_text(found.to_document()))
    assert read_draft_file(file) == found
    assert run("draft", "set", path, file).stdout == f"{ENDS}\n"
    assert bundle_draft_file(EngineBundle.open(path)) == found
    shown = run("draft", "show", path).stdout
    assert shown.splitlines()[0] == ENDS
    assert "acceptance, ends 0.9" in " ".join(shown.split())
    assert json.loads(run("draft", "show", file, "--json").stdout) == found.to_document()


def test_show_names_the_default_of_a_bundle_without_a_draft(path: Path) -> None:
    assert run("draft", "show", path).stdout == "own (the bundle has no draft.json)\n"
    assert run("draft", "show", path, "--json").stdout == "null\n"


def test_inspect_shows_the_draft(path: Path) -> None:
    assert "auto" not in run("inspect", path).stdout
    write_draft(path, ENDS)
    assert f"--draft auto is {ENDS}" in run("inspect", path).stdout
    assert json.loads(run("inspect", path, "--json").stdout)["bundle_draft"] == ENDS


@pytest.mark.parametrize(
    ("draft", "problem"),
    [
        ("own", "needs skipdec's kernels"),
        ("ends:6,exact=no", "ends:6 runs 6 layers of 6; allowed: 1 to 5"),
        ("onw", "did you mean 'own'"),
        ("auto", "stands for the bundle's draft"),
    ],
)
def test_what_the_bundle_cannot_run_is_not_set(path: Path, draft: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        write_draft(path, draft)
    assert not (path / "draft.json").exists()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"format": 2}, "has format 2; allowed: 1"),
        ({"draft": "onw"}, "'onw' is unknown"),
        ({"draft": None}, "has no text under the key 'draft'"),
        ({"measured": 3}, "measured is 3; allowed: an object or null"),
    ],
)
def test_a_damaged_file_is_named_with_its_remedy(
    path: Path, changes: dict[str, Any], problem: str
) -> None:
    write_draft(path, ENDS)
    damage(path, **changes)
    bundle = EngineBundle.open(path)
    with pytest.raises(BundleError, match=problem) as caught:
        recommended_draft(bundle)
    assert caught.value.subject == str(path / "draft.json")
    assert "skipdec draft set" in str(caught.value)
    write_draft(path, "off")
    assert recommended_draft(EngineBundle.open(path)) is None


def test_an_edited_file_is_refused_until_it_is_set_again(path: Path) -> None:
    write_draft(path, ENDS)
    file = path / "draft.json"
    file.write_text(file.read_text().replace("ends:3", "ends:2"))
    bundle = EngineBundle.open(path)
    with pytest.raises(BundleError, match="edited or damaged; write it with 'skipdec draft set'"):
        recommended_draft(bundle)
    assert any("draft.json" in problem for problem in bundle.check(full=False))
    write_draft(path, ENDS)
    assert bundle.check(full=False) == []
