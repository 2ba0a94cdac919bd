"""Configurations: every problem at once, sizes of memory, numbers in one text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from pydantic import BeforeValidator, Field, model_validator

from skipdec.engines.checking import MemorySize, ValidatedConfig, split_at_commas
from skipdec.engines.errors import UsageError


class Limits(ValidatedConfig):
    memory: MemorySize = 0
    sizes: Annotated[tuple[Annotated[int, Field(ge=1)], ...], BeforeValidator(split_at_commas)] = (
        1,
    )
    rows: int = 1
    columns: int = 1

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
def test_a_size_of_memory_is_a_number_of_bytes(text: object, size: int) -> None:
    assert Limits(memory=text).memory == size


@pytest.mark.parametrize("text", ["", "GB", "-1", "3 parsecs", "1e9", "nan", -1])
def test_anything_else_is_no_size(text: object) -> None:
    with pytest.raises(UsageError, match=r"memory is .*, no size; allowed: e\.g\. 512MiB"):
        Limits(memory=text)


def test_numbers_with_commas_are_a_tuple() -> None:
    assert Limits(sizes="1, 8").sizes == Limits(sizes=[1, 8]).sizes == (1, 8)
    with pytest.raises(UsageError, match="sizes is 'one'; allowed: whole numbers with commas"):
        Limits(sizes="one")
    with pytest.raises(UsageError, match="sizes is 0; allowed: 1 or more"):
        Limits(sizes="8,0")


def test_fields_that_do_not_go_together_are_told_beside_one_that_is_wrong_alone() -> None:
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


def test_what_a_validator_of_the_whole_says_is_told_as_it_is() -> None:
    class Refusing(Limits):
        @model_validator(mode="before")
        @classmethod
        def _refuse(cls, values: dict[str, Any]) -> dict[str, Any]:
            raise ValueError("no limits today")

    with pytest.raises(UsageError) as caught:
        Refusing(rows=1)
    assert caught.value.problems == ("no limits today",)
