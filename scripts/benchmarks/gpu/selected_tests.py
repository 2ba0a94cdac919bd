"""Run tests of the repository and print what they found as JSON.

    python scripts/benchmarks/gpu/selected_tests.py -m gpu tests/engines/backends

prints counts, the reasons of skipped tests, the figures that tests recorded (``record_property``),
and one problem for each failed test. That no test passed is a problem, too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

_ROOT = Path(__file__).parents[3]
_SHOWN = 400  # last characters of a failure


def main() -> None:
    """Run pytest with the arguments of this program."""
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as temporary:
        report = Path(temporary) / "report.xml"
        command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += [f"--junitxml={report}", "--continue-on-collection-errors", *sys.argv[1:]]
        ended = subprocess.run(command, cwd=_ROOT, stdout=sys.stderr)
        found = summary(report) if report.exists() else {"problems": []}
    if not found["problems"] and ended.returncode:
        found["problems"] = [f"pytest ended with {ended.returncode}"]
    print(json.dumps(found))


def summary(report: Path) -> dict[str, Any]:
    """Return counts, reasons, figures and problems of the JUnit file that pytest wrote."""
    passed, skipped = 0, Counter[str]()
    figures: dict[str, dict[str, str]] = {}
    problems = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = case.attrib["name"]
        properties = {one.attrib["name"]: one.attrib["value"] for one in case.iter("property")}
        if properties:
            figures[name] = properties
        bad = [one for kind in ("failure", "error") for one in case.iter(kind)]
        reasons = [_reason(one) for one in case.iter("skipped")]
        problems += [f"{name}: {one.attrib.get('message', '')[-_SHOWN:]}" for one in bad]
        skipped.update(reasons)
        passed += not bad and not reasons
    if not passed and not problems:
        problems = [f"no test passed; skipped: {', '.join(skipped) or 'none'}"]
    return {"passed": passed, "skipped": dict(skipped), "figures": figures, "problems": problems}


def _reason(skipped: ElementTree.Element) -> str:
    """Return why a test was skipped; for a whole file, only the element's text says it."""
    message = skipped.attrib.get("message", "")
    return f"{message}: {skipped.text}" if message == "collection skipped" else message


if __name__ == "__main__":
    main()
