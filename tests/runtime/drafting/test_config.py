"""Draft options are parsed from text, written in their shortest form, and checked."""

from __future__ import annotations

import pytest

from skipdec.engines.errors import UsageError
from skipdec.runtime.drafting.config import DraftConfig, DraftPart, parse_draft

OWN, ENDS = DraftPart("own"), DraftPart("ends", 3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("own", DraftConfig((OWN,))),
        (" Own + ENDS : 3 ", DraftConfig((OWN, ENDS))),
        ("own+lookup,tokens=5", DraftConfig((OWN, DraftPart("lookup")), tokens=5)),
        ("ends:3,exact=no", DraftConfig((ENDS,), exact=False)),
        ("trained,adapt=no", DraftConfig((DraftPart("trained"),), adapt=False)),
        ("off", None),
        (None, None),
    ],
)
def test_texts_are_parsed(text: str | None, expected: DraftConfig | None) -> None:
    assert parse_draft(text) == expected


@pytest.mark.parametrize("text", ["own", "own+lookup+ends:3,tokens=5,adapt=no,exact=no", "first:2"])
def test_the_shortest_form_parses_to_the_same_config(text: str) -> None:
    config = parse_draft(text)
    assert str(config) == text
    assert parse_draft(str(config)) == config


def test_defaults_are_left_out_of_the_shortest_form() -> None:
    assert str(parse_draft("own,tokens=7,adapt=yes,exact=yes")) == "own"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "'' is unknown; allowed: own, lookup, ends:N, first:N, trained, off or auto"),
        ("onw", "'onw' is unknown; did you mean 'own'?"),
        ("own+off", "'off' stands alone; allowed: own"),
        ("auto", "'auto' stands alone"),
        ("own+own", "'own' is named twice"),
        ("ends:3+own", "'ends:3' always proposes"),
        ("ends:3+first:2", "'ends:3' always proposes"),
        ("ends", "'ends' needs a number of layers, e.g. ends:3"),
        ("ends:0", "'ends:0' needs a number of layers"),
        ("ends:-1", "'ends:-1' needs a number of layers"),
        ("own:3", "'own:3' has a number; write own"),
        ("own,tokens=8", "tokens is '8'; allowed: 1 to 7"),
        ("own,tokens=", "tokens is ''; allowed: 1 to 7"),
        ("own,token=4", "'token' is unknown; did you mean 'tokens'? allowed: tokens, adapt"),
        ("own,exact=maybe", "exact is 'maybe'; allowed: yes or no"),
        ("own,tokens=4,tokens=5", "tokens is given twice"),
        ("own," * 100, "has 400 characters; allowed: 200"),
    ],
)
def test_a_bad_text_is_refused_with_the_allowed_values(text: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_draft(text)
    assert any(problem in one for one in caught.value.problems), caught.value


def test_all_problems_of_a_text_are_reported_at_once() -> None:
    with pytest.raises(UsageError, match="2 problems"):
        parse_draft("onw,tokens=9")


def test_a_value_that_is_not_a_text_is_refused() -> None:
    with pytest.raises(UsageError, match="is 3; allowed: a text"):
        parse_draft(3)  # type: ignore[arg-type]
