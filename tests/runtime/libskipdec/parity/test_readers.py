"""Python and libskipdec report the same about a bundle, however its documents were changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attack.readers import DOCUMENTS, KINDS, OPEN, NativeReader, compare, native_reader
from attack.readers import python_verdict as verdict_of_python
from programs import built_program

from skipdec.engines.bundle import file_record
from skipdec.engines.documents import sealed_text
from skipdec.runtime.schedule.bundle import write_schedule

Edit = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def reader() -> Iterator[NativeReader]:
    with native_reader(built_program("read_bundles")) as native:
        yield native


@pytest.fixture
def bundle(text_bundle: Path, tmp_path: Path) -> Path:
    """Return a bundle whose documents may be changed; its engines are links."""
    for path in text_bundle.rglob("*"):
        copy = tmp_path / path.relative_to(text_bundle)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.name in DOCUMENTS:
            copy.write_bytes(path.read_bytes())
        elif path.is_file():
            copy.hardlink_to(path)
    return tmp_path


def edit(bundle: Path, name: str, change: Edit) -> None:
    document = json.loads((bundle / name).read_bytes())
    change(document)
    text = json.dumps(document) if name == "tokenizer.json" else sealed_text(document)
    (bundle / name).write_text(text)
    if name == "tokenizer.json":
        record = file_record(bundle, name).model_dump()
        edit(bundle, "manifest.json", lambda manifest: _record(manifest, name).update(record))


def _record(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    return next(record for record in manifest["files"] if record["path"] == name)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("manifest.json", lambda file: file["engines"][1].update(step_bytes=True)),
        ("manifest.json", lambda file: file["engines"][1].update(step_bytes="8")),
        ("manifest.json", lambda file: file["kv_cache"].update(shares_buffer=1)),
        ("manifest.json", lambda file: file["model"].update(eos_token_id=2.0)),
        ("manifest.json", lambda file: file["model"].update(ffn_dim=2**64)),
        ("manifest.json", lambda file: file["model"].update(ffn_dim=float("nan"))),
        ("manifest.json", lambda file: file["engines"][1].update(weights=None)),
        ("manifest.json", lambda file: file.update(canonical=None)),
        ("schedule.json", lambda file: file["plan"].update(text="full")),
        ("schedule.json", lambda file: file["plan"].pop("horizon")),
        ("schedule.json", lambda file: file["plan"]["segments"].pop()),
        ("schedule.json", lambda file: file["presets"].pop("2x")),
        ("schedule.json", lambda file: file["schedule"].update(horizon=5)),
        ("schedule.json", lambda file: file["schedule"].update(decay="other")),
        ("schedule.json", lambda file: file["schedule"].update(power=2)),
        ("tokenizer.json", lambda file: file["model"]["vocab"].update(doubled=70)),
        ("tokenizer.json", lambda file: file["added_tokens"].append(file["added_tokens"][0])),
        ("tokenizer.json", lambda file: file["decoder"].pop("trim_offsets")),
        ("tokenizer.json", lambda file: file["pre_tokenizer"].update(type="Other")),
        ("tokenizer.json", lambda file: file.update(other=1)),
    ],
)
def test_both_refuse_a_value_that_is_not_allowed(
    reader: NativeReader, bundle: Path, name: str, change: Edit
) -> None:
    assert verdict_of_python(bundle) == reader.verdict(bundle) == OPEN
    edit(bundle, name, change)
    assert verdict_of_python(bundle).startswith("refused ")
    assert reader.verdict(bundle).startswith("refused ")


@pytest.mark.parametrize("name", ["manifest.json", "schedule.json"])
def test_both_refuse_a_reformatted_document(reader: NativeReader, bundle: Path, name: str) -> None:
    document = json.loads((bundle / name).read_bytes())
    (bundle / name).write_text(json.dumps(document, indent=1))
    assert verdict_of_python(bundle).startswith("refused ")
    assert reader.verdict(bundle).startswith("refused ")


@pytest.mark.parametrize(
    "text",
    [
        "power:max=5,min=2,horizon=300,power=3,prompt=decay",
        "power:max=6,min=2,horizon=50,power=0.3",
        "exponential:max=5,min=2,horizon=40,rate=2.5,placement=unified-nested",
        "cosine:max=6,min=3,horizon=200,placement=hierarchical",
        "step:max=6,min=2,horizon=50,steps=3,placement=bottom",
        "d3:max=6,min=3,alpha=0.98,placement=d3,tail=1",
        "table:table=6/6/5/3/2",
        "constant:max=4,placement=unified",
        "linear:max=6,min=2,horizon=1048576",
    ],
)
def test_both_resolve_a_rule_to_the_same_plan(
    reader: NativeReader, bundle: Path, text: str
) -> None:
    write_schedule(bundle, text)
    assert verdict_of_python(bundle) == reader.verdict(bundle) == OPEN


@pytest.mark.parametrize("kind", sorted(set(KINDS)))
def test_both_agree_on_tampered_documents(
    reader: NativeReader, text_bundle: Path, tmp_path: Path, kind: str
) -> None:
    verdicts = list(compare(text_bundle, tmp_path, reader, range(40), (kind,)))
    assert not [str(each) for each in verdicts if not each.agree]
    assert any(each.python != OPEN for each in verdicts)
