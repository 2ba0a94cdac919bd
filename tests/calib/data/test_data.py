"""Rows of the user's files become examples; errors name the line."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

from skipdec.calib.data.data import DataConfig, Example, load_examples
from skipdec.engines.errors import MissingExtraError, UsageError


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="")
    return path


def jsonl(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_jsonl_rows_keep_their_order_and_blank_lines_are_numbered(tmp_path: Path) -> None:
    path = write(
        tmp_path / "data.jsonl",
        jsonl({"prompt": "é", "completion": "one"})
        + "\n"
        + jsonl({"prompt": "b", "completion": "two"}),
    )
    assert load_examples(DataConfig(path=path)) == [
        Example("é", "one", "data.jsonl, line 1"),
        Example("b", "two", "data.jsonl, line 3"),
    ]


def test_csv_rows_are_named_by_their_first_line(tmp_path: Path) -> None:
    text = '\ufeffmr,ref\n"name[A, B]","first\nsecond"\nname[C],third\n'
    examples = load_examples(DataConfig(path=write(tmp_path / "dev.csv", text), preset="e2e"))
    assert examples == [
        Example("name[A, B]", "first\nsecond", "dev.csv, line 2"),
        Example("name[C]", "third", "dev.csv, line 4"),
    ]


def test_blank_lines_of_a_csv_file_are_skipped_before_its_header_too(tmp_path: Path) -> None:
    path = write(tmp_path / "data.csv", "\n\nprompt,completion\n\na,b\n")
    assert load_examples(DataConfig(path=path)) == [Example("a", "b", "data.csv, line 5")]
    with pytest.raises(UsageError, match="has no rows"):
        load_examples(DataConfig(path=write(path, "\n\n")))


def test_a_csv_header_with_a_repeated_name_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "data.csv", "prompt,completion,completion,,\na,b,c,,\n")
    with pytest.raises(UsageError, match="has several columns named 'completion'; rename or"):
        load_examples(DataConfig(path=path))


def test_a_csv_cell_may_exceed_pythons_default_limit(tmp_path: Path) -> None:
    text = "a " * 70_000
    limit = csv.field_size_limit()
    path = write(tmp_path / "data.csv", f"prompt,completion\n{text},b\n")
    assert load_examples(DataConfig(path=path)) == [Example(text, "b", "data.csv, line 2")]
    assert csv.field_size_limit() == limit, "the limit of the whole process is restored"


def test_given_columns_and_templates_override_the_preset(tmp_path: Path) -> None:
    path = write(tmp_path / "dev.csv", "mr,text\n{completion} x,y\n")
    config = DataConfig(
        path=path, preset="e2e", completion_column="text", prompt_template="{prompt}<sep>"
    )
    assert load_examples(config) == [Example("{completion} x<sep>", "y", "dev.csv, line 2")]


@pytest.mark.parametrize(
    ("preset", "row", "prompt", "completion"),
    [
        ("tldr", {"content": "post", "summary": "short"}, "post\nTL;DR:", " short"),
        ("cnn-dm", {"article": "news", "highlights": "gist"}, "news\nTL;DR:", " gist"),
    ],
)
def test_presets_read_their_summaries(
    preset: str, row: dict[str, str], prompt: str, completion: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "data.jsonl", jsonl(row))
    example = load_examples(DataConfig(path=path, preset=preset))[0]
    assert (example.prompt, example.completion) == (prompt, completion)


def test_all_bad_rows_are_named_together(tmp_path: Path) -> None:
    rows = jsonl(
        {"prompt": "a", "completion": " "},
        {"prompt": "a"},
        {"prompt": 7, "completion": "c"},
        ["a", "c"],
        {"prompt": "fine", "completion": "fine"},
    )
    broken = ["{broken", "[" * 10_000 + "]" * 10_000, "1" * 5000]
    path = write(tmp_path / "data.jsonl", "\n".join([rows.strip(), *broken]))
    with pytest.raises(UsageError) as caught:
        load_examples(DataConfig(path=path))
    expected = [
        "line 2: has no 'completion'; its columns are 'prompt'; name yours with",
        "line 1: 'completion' is empty",
        "line 3: 'prompt' is 7; allowed: a text",
        "line 4: is a JSON list",
        "line 6: is not JSON",
        "line 7: is nested deeper than 100 levels",
        "line 8: is not JSON (Exceeds the limit",
    ]
    for problem, text in zip(caught.value.problems, expected, strict=True):
        assert problem.startswith(f"data.jsonl, {text}")


def test_missing_columns_are_reported_once_with_the_preset_that_fits(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", "mr,ref\n" + "a,fine\n" * 40)
    with pytest.raises(UsageError) as caught:
        load_examples(DataConfig(path=path))
    first, second = caught.value.problems
    problem = "has no 'prompt', nor have 39 other rows; its columns are 'mr', 'ref'"
    assert first == f"rows.csv, line 2: {problem}"
    assert second.startswith("rows.csv, line 2: has no 'completion', nor have 39 other rows")
    assert second.endswith("--preset e2e reads these")
    with pytest.raises(UsageError, match=r"has no 'article'(?s:.*)--preset e2e reads these"):
        load_examples(DataConfig(path=path, preset="cnn-dm"))


def test_twenty_bad_rows_are_shown_and_the_rest_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "dev.csv", "prompt,completion\n" + ",x\n" * 25)
    with pytest.raises(UsageError) as caught:
        load_examples(DataConfig(path=path))
    assert len(caught.value.problems) == 21
    assert caught.value.problems[19] == "dev.csv, line 21: 'prompt' is empty"
    assert caught.value.problems[20] == "and 5 more"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("dev.csv", b"prompt,completion\na,b,c\n", "line 2: has 3 cells; the header has 2"),
        ("dev.csv", b'prompt,completion\na,b\n"c,d\n', "line 3: is not CSV"),
        ("dev.csv", b"prompt,completion\n", "has no rows"),
        ("dev.csv", b"prompt;completion\n", "columns separated by semicolons; give commas"),
        ("dev.csv", b"prompt\tcompletion\n", "columns separated by tabs; give commas"),
        ("dev.csv", b"prompt,completion\n\xff,b\n", "line 2: is not UTF-8 .byte 0xff"),
        ("dev.xlsx", b"", "ends in '.xlsx'.*allowed: .jsonl, .csv"),
    ],
)
def test_unreadable_files_are_refused(
    name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=message):
        load_examples(DataConfig(path=tmp_path / name))


def test_a_missing_file_and_a_bad_template_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        load_examples(DataConfig(path=tmp_path / "none.csv"))
    with pytest.raises(UsageError, match=r"prompt_template is 'x'; allowed: .* \{prompt\} once"):
        DataConfig(path=tmp_path, prompt_template="x")


def test_a_dataset_on_disk_is_read(tmp_path: Path) -> None:
    import datasets

    rows = datasets.Dataset.from_dict({"prompt": ["a", "b"], "completion": ["1", "2"]})
    rows.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict(train=rows).save_to_disk(str(tmp_path / "split"))
    assert load_examples(DataConfig(path=tmp_path / "one"))[1] == Example("b", "2", "one, row 2")
    with pytest.raises(UsageError, match=r"several splits; give one of .*split/train"):
        load_examples(DataConfig(path=tmp_path / "split"))
    assert len(load_examples(DataConfig(path=tmp_path / "split" / "train"))) == 2


def test_a_dataset_without_the_library_names_the_pip_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match="pip install datasets"):
        load_examples(DataConfig(path=tmp_path))
