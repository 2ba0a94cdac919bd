"""A damaged bundle does not open, and the damaged file is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from skipdec.engines.bundle import EngineBundle, write_schedule
from skipdec.engines.errors import BundleError

FILES = [
    "manifest.json",
    "schedule.json",
    "tokenizer.json",
    *(
        f"engines/onnxruntime/{name}.{suffix}"
        for name in ("embed", "layer_000", "layer_001", "head")
        for suffix in ("onnx", "weights")
    ),
]


def flip(path: Path, fraction: float) -> None:
    content = bytearray(path.read_bytes())
    content[min(int(fraction * len(content)), len(content) - 1)] ^= 1
    path.write_bytes(content)


def test_the_list_of_files_is_complete(bundle: EngineBundle) -> None:
    present = [p.relative_to(bundle.path).as_posix() for p in bundle.path.rglob("*") if p.is_file()]
    assert sorted(present) == sorted(FILES)
    EngineBundle.open(bundle.path, verify="full")


@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("file", FILES)
def test_one_flipped_bit_is_found_and_named(
    bundle: EngineBundle, file: str, fraction: float
) -> None:
    flip(bundle.path / file, fraction)
    with pytest.raises(BundleError, match=file):
        EngineBundle.open(bundle.path, verify="full")
    if file.endswith(".weights"):
        EngineBundle.open(bundle.path)  # weights are too large to hash at every start
    else:
        with pytest.raises(BundleError, match=file):
            EngineBundle.open(bundle.path)


def test_every_byte_of_the_manifest_counts(bundle: EngineBundle) -> None:
    path = bundle.path / "manifest.json"
    whole = path.read_bytes()
    for offset in range(0, len(whole), 7):
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :])
        with pytest.raises(BundleError, match=r"manifest\.json"):
            EngineBundle.open(bundle.path)


@pytest.mark.parametrize("file", FILES)
def test_a_shortened_file_does_not_open(bundle: EngineBundle, file: str) -> None:
    path = bundle.path / file
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BundleError, match=file):
        EngineBundle.open(bundle.path)


@pytest.mark.parametrize("file", [file for file in FILES if file != "manifest.json"])
def test_a_missing_file_does_not_open(bundle: EngineBundle, file: str) -> None:
    (bundle.path / file).unlink()
    with pytest.raises(BundleError, match=f"{file}.*is missing"):
        EngineBundle.open(bundle.path)


def test_all_damaged_files_are_named_together(bundle: EngineBundle) -> None:
    for file in FILES[3:6]:
        (bundle.path / file).unlink()
    with pytest.raises(BundleError) as raised:
        EngineBundle.open(bundle.path)
    assert all(file in str(raised.value) for file in FILES[3:6])


def test_a_link_that_leaves_the_bundle_is_refused(bundle: EngineBundle, tmp_path: Path) -> None:
    weights = bundle.path / "engines/onnxruntime/head.weights"
    weights.rename(tmp_path / "elsewhere")
    weights.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BundleError, match=r"head\.weights: is a link to .*elsewhere"):
        EngineBundle.open(bundle.path)


def test_a_bundle_opens_through_a_link_to_it(bundle: EngineBundle, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(bundle.path)
    assert EngineBundle.open(tmp_path / "link").path == bundle.path


@pytest.mark.parametrize(("name", "reason"), [("a\0b", "null byte"), ("x" * 5000, "too long")])
def test_invalid_names_are_bundle_errors(name: str, reason: str) -> None:
    with pytest.raises(BundleError, match=f"can't be opened .*{reason}"):
        EngineBundle.open(name)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.symlink_to(path), "does not exist"),
        (lambda path: path.write_text(""), "is not a directory; allowed: one made by"),
        (lambda path: path.mkdir(), "has no manifest.json"),
        (lambda path: (path.mkdir(), (path / "config.json").touch()), "skipdec export"),
        (lambda path: path.with_name(f".{path.name}.partial").mkdir(), "unfinished export"),
    ],
    ids=["nothing", "loop", "file", "directory", "checkpoint", "unfinished"],
)
def test_the_error_names_what_was_found_instead_of_a_bundle(
    tmp_path: Path, make: object, text: str
) -> None:
    assert callable(make)
    make(tmp_path / "name")
    with pytest.raises(BundleError, match=text):
        EngineBundle.open(tmp_path / "name")


def test_only_listed_files_can_be_read(bundle: EngineBundle) -> None:
    assert bundle.file("engines/onnxruntime/head.onnx").is_file()
    for path in ("../outside", "/etc/passwd", "engines/onnxruntime/other.onnx"):
        with pytest.raises(BundleError, match="lists no file"):
            bundle.file(path)


def test_a_file_larger_than_the_limit_is_not_read(bundle: EngineBundle) -> None:
    size = len(bundle.read("tokenizer.json"))
    assert len(bundle.read("tokenizer.json", limit=size)) == size
    with pytest.raises(BundleError, match=f"tokenizer.json.*larger than {size - 1:,} bytes, the"):
        bundle.read("tokenizer.json", limit=size - 1)


def test_a_new_schedule_replaces_the_file_and_changes_nothing_else(bundle: EngineBundle) -> None:
    path = bundle.path / "schedule.json"
    mapped = path.open("rb")  # a process that still reads the old one
    before = path.read_bytes()
    write_schedule(bundle.path, {"horizon": 5})
    reopened = EngineBundle.open(bundle.path, verify="full")
    assert reopened.schedule_document == {"horizon": 5}
    assert reopened.manifest == bundle.manifest
    assert mapped.read() == before
    mapped.close()
    assert sorted(p.name for p in bundle.path.iterdir()) == [
        "engines",
        "manifest.json",
        "schedule.json",
        "tokenizer.json",
    ]
