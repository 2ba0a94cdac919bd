"""The site's search finds pages before attributes of classes."""

from __future__ import annotations

from pages.search import folded


def item(location: str, level: int, title: str, text: str = "") -> dict[str, object]:
    return {"location": location, "level": level, "title": title, "text": text}


def test_members_are_folded_into_their_class() -> None:
    page = item("concepts/schedules/", 1, "Exit schedules", "what runs")
    deep = item("concepts/schedules/#d3", 4, "d3", "a decay")
    params = item("reference/python/#skipdec.SamplingParams", 3, "SamplingParams", "how")
    member = item("reference/python/#skipdec.SamplingParams.seed", 4, "seed", "of randomness")

    found = folded([page, deep, params, member])

    assert found == [page, deep, params | {"text": "how<p>seed</p>of randomness"}]
    assert params["text"] == "how"
