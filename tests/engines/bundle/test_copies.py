"""A bundle pushed to the hub comes back the same; a damaged one is never pushed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from fake_hub import FakeHub, fake_hub
from hollow_bundles import write_hollow_bundle

from skipdec.engines.bundle import EngineBundle
from skipdec.engines.errors import BundleError, SkipDecError, UsageError
from skipdec.runtime.schedule import ExitSchedule

REPO = "me/hollow"


@pytest.fixture
def bundle(tmp_path: Path) -> EngineBundle:
    written = write_hollow_bundle(tmp_path / "bundle", ExitSchedule.full(2))
    (written.path / "README.md").write_text("---\nlicense: mit\n---\n# hollow\n")
    (written.path / "notes.txt").write_text("mine")
    return written


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with fake_hub(monkeypatch) as served:
        yield served


def test_a_bundle_survives_the_hub_unchanged(
    bundle: EngineBundle, hub: FakeHub, tmp_path: Path
) -> None:
    url = bundle.push_to_hub(REPO, private=True)
    assert url.startswith(f"{hub.endpoint}/{REPO}/commit/")
    pushed = hub.branches[f"{REPO}@main"]
    listed = {record.path for record in bundle.manifest.files}
    assert pushed.keys() == listed | {"manifest.json", "schedule.json", "README.md"}
    assert hub.private[REPO] in (True, "private")
    copy = tmp_path / "downloaded"
    huggingface_hub.snapshot_download(REPO, local_dir=copy)
    assert EngineBundle.open(copy, verify="full").manifest == bundle.manifest
    bundle.push_to_hub(REPO, revision="other")
    assert hub.branches[f"{REPO}@other"] == pushed


def test_damaged_or_refused_files_are_named_and_nothing_is_sent(
    bundle: EngineBundle, hub: FakeHub
) -> None:
    with pytest.raises(UsageError, match="is not a hub id"):
        bundle.push_to_hub("no/hub/id")
    hub.refuses = True
    with pytest.raises(SkipDecError, match=r"could not be pushed \(.*401.*hf auth login"):
        bundle.push_to_hub(REPO)
    hub.refuses = False
    weights = bundle.path / bundle.manifest.engines[1].weights[0]
    weights.write_bytes(bytes(weights.stat().st_size))
    for send in (bundle.push_to_hub, bundle.save):
        with pytest.raises(BundleError, match="the bundle is damaged"):
            send("me/other")
    assert not hub.branches


def test_a_copy_is_saved_in_one_step(bundle: EngineBundle, tmp_path: Path) -> None:
    saved = bundle.save(tmp_path / "copy")
    assert saved.manifest == bundle.manifest
    assert (saved.path / "README.md").read_text() == (bundle.path / "README.md").read_text()
    assert not (saved.path / "notes.txt").exists()
    with pytest.raises(UsageError, match="pass --force"):
        bundle.save(tmp_path / "copy")
    bundle.save(tmp_path / "copy", force=True)
    with pytest.raises(UsageError, match="can't be copied to itself"):
        bundle.save(bundle.path, force=True)
