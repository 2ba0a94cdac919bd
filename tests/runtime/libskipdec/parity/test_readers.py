"""Python and libskipdec report the same about a bundle, however its documents were changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from attack.readers import KINDS, OPEN, NativeReader, compare
from attack.readers import python_verdict as verdict_of_python
from bundle_documents import Edit, edit

from skipdec.runtime.schedule.bundle import write_schedule


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
        ("manifest.json", lambda file: file.update(chat_template={"path": "other.jinja"})),
        ("manifest.json", lambda file: file.update(chat_template={"bos_token": "<s>"})),
        ("manifest.json", lambda file: file.update(chat_template="tokenizer.json")),
        (
            "manifest.json",
            lambda file: file.update(
                chat_template={"path": "tokenizer.json", "special_tokens": {"bos_token": 5}}
            ),
        ),
        (
            "manifest.json",
            lambda file: file.update(
                chat_template={"path": "tokenizer.json", "special_tokens": {"additional": ["a", 5]}}
            ),
        ),
        ("manifest.json", lambda file: file.update(end_token_ids=[2, 3])),
        ("manifest.json", lambda file: file.update(end_token_ids=[2], requires=["end_token_ids"])),
        ("manifest.json", lambda file: file.update(end_token_ids=None)),
        ("manifest.json", lambda file: file.update(sampling_defaults={"top_p": 0})),
        ("manifest.json", lambda file: file.update(sampling_defaults={"temperature": -0.5})),
        ("manifest.json", lambda file: file.update(sampling_defaults={"top_k": 2.0})),
        ("manifest.json", lambda file: file.update(sampling_defaults={"min_p": True})),
        ("manifest.json", lambda file: file.update(sampling_defaults=[])),
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
    assert_same_refusal(reader, bundle)


def assert_same_refusal(reader: NativeReader, bundle: Path) -> None:
    python, native = verdict_of_python(bundle), reader.verdict(bundle)
    assert python != OPEN
    assert native.partition(":")[0] == python.partition(":")[0], (native, python)


@pytest.mark.parametrize("name", ["manifest.json", "schedule.json"])
def test_both_refuse_a_reformatted_document(reader: NativeReader, bundle: Path, name: str) -> None:
    document = json.loads((bundle / name).read_bytes())
    (bundle / name).write_text(json.dumps(document, indent=1))
    assert_same_refusal(reader, bundle)


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
