"""Prompts use the data's template if there is one, else the model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skipdec.calib.data.data import DataConfig
from skipdec.calib.data.tokenised import PromptTemplate

MODELS = "{prompt}\nTL;DR:"


@pytest.mark.parametrize(
    ("options", "models", "chosen", "note"),
    [
        ({}, None, PromptTemplate("{prompt}"), None),
        ({}, MODELS, PromptTemplate(MODELS, is_models=True), "as the model was tuned"),
        ({"preset": "e2e"}, MODELS, PromptTemplate(MODELS, is_models=True), "was tuned"),
        ({"preset": "tldr"}, MODELS, PromptTemplate(MODELS), None),
        ({"preset": "tldr"}, None, PromptTemplate(MODELS), None),
        ({"prompt_template": "{prompt}:"}, MODELS, PromptTemplate("{prompt}:"), "tuned with"),
        ({"prompt_template": "{prompt}"}, MODELS, PromptTemplate("{prompt}"), "tuned with"),
    ],
)
def test_the_datas_template_overrides_the_models(
    options: dict[str, Any], models: str | None, chosen: PromptTemplate, note: str | None
) -> None:
    found = PromptTemplate.choose(DataConfig(path=Path("rows.jsonl"), **options), models)
    assert (found.text, found.is_models) == (chosen.text, chosen.is_models)
    assert (found.note is None) if note is None else (note in str(found.note))
    assert found.apply("a") == ("a\nTL;DR:" if found.is_models else "a")
