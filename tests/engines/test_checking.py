"""Configurations report all problems together and parse memory sizes and numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BeforeValidator, Field, model_validator

from skipdec.engines.checking import MemorySize, ValidatedConfig, split_at_commas
from skipdec.engines.errors import UsageError, shown


class Inner(ValidatedConfig):
    depth: int = 1


class Limits(ValidatedConfig):
    memory: MemorySize = 0
    sizes: Annotated[tuple[Annotated[int, Field(ge=1)], ...], BeforeValidator(split_at_commas)] = (
        1,
    )
    rows: int = 1
    columns: int = 1
    share: float = Field(default=1.0, gt=0)
    file: Path | None = None
    inner: Inner | None = None

    def _problems(self) -> Iterator[str]:
        if self.rows > self.columns:
            yield f"`rows` is {self.rows}; allowed: at most `columns`, {self.columns}"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1000", 1000),
        ("64B", 64),
        ("2GB", 2 * 10**9),
        (" 2 gib ", 2**31),
        ("1.5MiB", 3 * 2**19),
        ("0", 0),
        (4096, 4096),
    ],
)
def test_a_memory_size_is_parsed_to_bytes(text: object, size: int) -> None:
    assert Limits(memory=text).memory == size


@pytest.mark.parametrize("text", ["", "GB", "-1", "3 parsecs", "1e9", "nan", -1])
def test_any_other_text_is_refused_as_a_size(text: object) -> None:
    with pytest.raises(UsageError, match=r"memory is .*, not a size; allowed: e\.g\. 512MiB"):
        Limits(memory=text)


def test_the_home_directory_is_expanded_in_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert Limits(file="~/rows.jsonl").file == Path("/home/me/rows.jsonl")


def test_values_that_json_cannot_hold_are_refused() -> None:
    for share in (math.inf, math.nan):
        with pytest.raises(UsageError, match=f"share is {share}; allowed: a finite number"):
            Limits(share=share)
    with pytest.raises(UsageError, match=r"file is 'caf\\udce9'; allowed: a path in UTF-8"):
        Limits(file="caf\udce9")


def test_values_of_the_wrong_type_are_refused_in_plain_words() -> None:
    with pytest.raises(UsageError, match=r"file is \{\}; allowed: a path$"):
        Limits(file={})
    with pytest.raises(UsageError, match=r"inner is \[\]; allowed: a mapping of fields to values$"):
        Limits(inner=[])


def test_comma_separated_numbers_become_a_tuple() -> None:
    assert Limits(sizes="1, 8").sizes == Limits(sizes=[1, 8]).sizes == (1, 8)
    with pytest.raises(UsageError, match="sizes is 'one'; allowed: comma-separated whole numbers"):
        Limits(sizes="one")
    with pytest.raises(UsageError, match="sizes is 0; allowed: 1 or more"):
        Limits(sizes="8,0")


def test_conflicting_fields_are_reported_with_invalid_ones() -> None:
    with pytest.raises(UsageError) as caught:
        Limits(memory="much", rows=3)
    assert len(caught.value.problems) == 2
    assert caught.value.problems[1] == "rows is 3; allowed: at most columns, 1"
    with pytest.raises(UsageError, match="1 or more") as caught:
        Limits(sizes=(0,), rows=3, columns="few")
    assert len(caught.value.problems) == 2, "columns is refused, so rows can't be compared with it"


def test_an_updated_copy_is_checked() -> None:
    limits = Limits(columns=3)
    assert limits.updated(rows=2) == Limits(rows=2, columns=3)
    with pytest.raises(UsageError, match="rows is 4"):
        limits.updated(rows=4)


def test_model_validator_messages_are_reported_unchanged() -> None:
    class Refusing(Limits):
        @model_validator(mode="before")
        @classmethod
        def _refuse(cls, values: dict[str, Any]) -> dict[str, Any]:
            raise ValueError("no limits today")

    with pytest.raises(UsageError) as caught:
        Refusing(rows=1)
    assert caught.value.problems == ("no limits today",)


@pytest.mark.parametrize(
    ("values", "count"),
    [
        ({"sizes": [0] * 10**5}, 1),
        ({"sizes": [[[0] * 999] * 999]}, 1),
        ({"memory": "x" * 10**6}, 1),
        ({"rows": {str(number): number for number in range(10**5)}}, 1),
        ({f"unknown{number}": number for number in range(10**5)}, 11),
        ({"x" * 10**6: 1, "rows": 10**900}, 2),
    ],
    ids=["bad elements", "nested", "a long text", "a mapping", "unknown fields", "a long name"],
)
def test_a_message_is_short_for_any_value(values: dict[str, Any], count: int) -> None:
    with pytest.raises(UsageError) as caught:
        Limits(**values)
    assert len(caught.value.problems) == count
    assert len(str(caught.value)) < 4000


def test_unknown_fields_beyond_ten_are_counted() -> None:
    with pytest.raises(UsageError) as caught:
        Limits(rows="few", **{f"unknown{number}": 1 for number in range(12)})
    assert caught.value.problems[0].startswith("rows is 'few'")
    assert caught.value.problems[-1] == "and 2 more unknown fields"


@pytest.mark.parametrize(
    "value", ["2x", "it's", [1, "a", None], (1,), (), {"a": [1.5]}, True, -7, b"a"]
)
def test_a_short_value_is_shown_as_its_repr(value: object) -> None:
    assert shown(value) == repr(value)


@pytest.mark.parametrize(
    "value", ["x" * 99, ["x"] * 99, {"a": list(range(99))}, [[1] * 99] * 99, (0.5,) * 99]
)
def test_a_long_value_is_shown_as_the_beginning_of_its_repr(value: object) -> None:
    assert shown(value) == repr(value)[:80] + "…"


def test_a_value_that_contains_itself_is_shown() -> None:
    endless: list[object] = []
    endless.append(endless)
    assert shown(endless) == "[" * 80 + "…"
