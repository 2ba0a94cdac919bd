"""Describe a device and measure its memory bandwidth, as JSON.

python scripts/benchmarks/gpu/device_facts.py cuda 1073741824
"""

from __future__ import annotations

import json
import sys

from skipdec.engines.host.gpus import survey_gpus
from skipdec.engines.importing import load
from skipdec.runtime.measuring.bandwidth import PASSES, measure_device_bandwidth

DEVICES = {
    "cuda": "engines.backends.cuda:CudaDevice",
    "rehearsal": "engines.backends.rehearsal:RehearsalDevice",
}


def main() -> None:
    """Print the facts of the device in argument 1; the probe copies argument 2 bytes."""
    name, probe_bytes = sys.argv[1], int(sys.argv[2])
    device = load(DEVICES[name])()
    facts = {
        "name": device.name,
        "compute_capability": device.compute_capability,
        "cuda": survey_gpus().cuda,
        "bandwidth": measure_device_bandwidth(device, probe_bytes),
        "bandwidth_passes": PASSES,
    }
    device.close()
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
