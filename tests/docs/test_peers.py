"""The table of other engines has the medians and ratios of its record."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from statistics import median

from benchmarks.cpu.restaurants import FIGURES
from benchmarks.peers import verdict
from page_blocks import ROOT

PROCESSORS = {
    "Zen 3": "amd-epyc-family-25-model-1",
    "Zen 4": "amd-epyc-family-25-model-17-avx512_vnni",
    "Zen 5": "amd-epyc-family-26-model-2-avx512_vnni",
}
Times = dict[str, list[float]]  # times of each engine, one per start


def rows() -> Iterator[tuple[str, str, list[str], list[list[str]]]]:
    """Yield each row's model, processor, measures, and columns of one figure per measure."""
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    section = page.split("\n## Other engines\n")[1].split("\n## ")[0]
    model = processor = ""
    for line in re.findall(r"^\| (?!model)(.*) \|$", section, re.MULTILINE):
        first, second, measured, *columns = (cell.strip() for cell in line.split("|"))
        model, processor = first or model, second or processor
        kind, _, batches = measured.partition(", batch ")
        kind = {"step": "decode", "prompt of 512": "prompt of 512 tokens, ms"}.get(kind, kind)
        measures = [f"{kind}, batch {one}, ms per step" for one in batches.split("; ") if one]
        measures = measures or [kind]
        texts = [column.split("; ") * (len(measures) if column == "–" else 1) for column in columns]
        yield model, processor, measures, texts


def is_median(text: str, times: list[float]) -> bool:
    number = text.replace(",", "")
    return f"{median(times):.{len(number.partition('.')[2])}f}" == number


def test_the_table_of_other_engines_equals_its_records() -> None:
    shown = 0
    for model, processor, measures, columns in rows():
        record = FIGURES.parent / "peers" / f"{PROCESSORS[processor]}.json"
        cells = json.loads(record.read_text())["parts"][model.lower()]["cells"]
        for measure, *texts in zip(measures, *columns, strict=True):
            times: Times = cells[measure]["times"]
            named = f"{model}, {processor}, {measure}"
            engines = ("skipdec", "CTranslate2" if "opt" in model else "llama.cpp", "OpenVINO")
            for engine, text in zip(engines, texts, strict=False):
                assert engine in times if text != "–" else engine not in times, named
                assert text == "–" or is_median(text, times[engine]), f"{named}, {engine}"
            ((_, _, ratio, _),) = verdict.rows({measure: cells[measure]})
            assert texts[-1] == ratio, named
            shown += 1
    assert shown > 40
