from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from host_device import HostDevice

from skipdec.engines.backends.ort import OrtBackend
from skipdec.engines.backends.recording import Recording, RecordingBackend
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.errors import UsageError
from skipdec.engines.manifest import TensorRole
from skipdec.engines.memory import Array

Exported = Callable[..., Path]
Opened = tuple[EngineBundle, RecordingBackend]


@pytest.fixture
def opened(exported: Exported, tmp_path: Path) -> Callable[[int], Opened]:
    def open_with(limit: int) -> Opened:
        bundle = EngineBundle.open(exported("pre_norm"))
        return bundle, RecordingBackend(OrtBackend(threads=1), tmp_path / "calls", limit)

    return open_with


def run_embed(bundle: EngineBundle, backend: RecordingBackend, steps: int) -> list[Array]:
    """Return the hidden states [1, 2, E] of each step."""
    spec = bundle.manifest.embed
    session, results = backend.load(bundle, spec), []
    ids, positions = np.zeros((1, 2), np.int64), np.zeros((1, 2), np.int64)
    hidden = np.zeros((1, 2, bundle.manifest.model.hidden_size), np.float32)
    roles = (TensorRole.INPUT_IDS, TensorRole.POSITION_IDS, TensorRole.HIDDEN_STATES_OUT)
    binding = session.bind(dict(zip(roles, (ids, positions, hidden), strict=True)))
    for step in range(steps):
        ids[:] = step
        binding.run()
        results.append(hidden.copy())
    binding.release()
    return results


def test_each_call_is_kept_as_it_was_read_and_changes_nothing(
    opened: Callable[[int], Opened], tmp_path: Path
) -> None:
    bundle, backend = opened(1 << 20)
    recorded = run_embed(bundle, backend, steps=3)
    backend.close()
    plain = run_embed(bundle, OrtBackend(threads=1), steps=3)  # type: ignore[arg-type]
    np.testing.assert_array_equal(recorded, plain)
    recording = Recording.open(tmp_path / "calls")
    assert recording.index.digest == bundle.manifest.digest
    assert (recording.index.complete, recording.index.nbytes) == (True, 3 * 32)
    calls = list(recording.calls("embed"))
    assert [step for step, _ in calls] == [0, 1, 2]
    assert [int(tensors[TensorRole.INPUT_IDS][0, 0]) for _, tensors in calls] == [0, 1, 2]


def test_the_limit_ends_a_recording_between_calls(
    opened: Callable[[int], Opened], tmp_path: Path
) -> None:
    bundle, backend = opened(70)
    run_embed(bundle, backend, steps=4)
    backend.close()
    index = Recording.open(tmp_path / "calls").index
    assert (index.complete, index.nbytes, len(index.calls)) == (False, 64, 2)
    assert len(list((tmp_path / "calls").iterdir())) == 3


def test_a_run_without_calls_leaves_nothing(
    opened: Callable[[int], Opened], tmp_path: Path
) -> None:
    bundle, backend = opened(70)
    run_embed(bundle, backend, steps=0)
    backend.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_files_and_a_device_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is not empty; name a new directory"):
        RecordingBackend(OrtBackend(threads=1), tmp_path, 1)
    on_device = OrtBackend(threads=1)
    on_device.device = HostDevice()
    with pytest.raises(UsageError, match="engines on the CPU"):
        RecordingBackend(on_device, tmp_path / "calls", 1)


def test_damage_is_named(opened: Callable[[int], Opened], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"recording\.json.*--record"):
        Recording.open(tmp_path)
    bundle, backend = opened(1 << 20)
    run_embed(bundle, backend, steps=1)
    backend.close()
    calls = tmp_path / "calls"
    (calls / "000000.npz").write_bytes(b"PK\3\4nothing")
    with pytest.raises(UsageError, match=r"000000\.npz can't be read"):
        list(Recording.open(calls).calls("embed"))
    index = json.loads((calls / "recording.json").read_text())
    index["calls"][0]["file"] = "../../secret.npz"
    (calls / "recording.json").write_text(json.dumps(index))
    with pytest.raises(UsageError, match="is not a recording"):
        Recording.open(calls)
