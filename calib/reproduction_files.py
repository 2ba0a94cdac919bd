"""What a reproduction leaves in its work directory beside the models: the table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import version

from ..engines.bundle import replace_file
from ..engines.cpu import available_cores, processor_name
from .reproduction_config import ReproductionConfig
from .reproduction_evaluation import CellResult
from .reproduction_table import Table, tables_markdown

DOCUMENT, REPORT = "results.json", "tables.md"


def write_results(config: ReproductionConfig, results: Sequence[CellResult]) -> str:
    """Write results.json and tables.md into ``config.work``; return the tables."""
    document = {
        "skipdec": version("skipdec"),
        "torch": version("torch"),
        "processor": processor_name(),
        "cores": available_cores(),
        "config": config.model_dump(mode="json"),
        "cells": [result.model_dump(mode="json", exclude={"resampled"}) for result in results],
    }
    tables = tables_markdown(Table(config, results))
    replace_file(config.work / DOCUMENT, (json.dumps(document, indent=2) + "\n").encode())
    replace_file(config.work / REPORT, tables.encode())
    return tables
