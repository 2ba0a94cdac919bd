"""Measures the exporter's peak memory from real checkpoint files of random weights.

    python scripts/export_memory.py opt-1.3b --fp16 --limit 1.5GB
    python scripts/export_memory.py opt-6.7b --quantize int4 --limit 3.5GB

Writes a sharded safetensors and a sharded .bin checkpoint of MODEL, exports the dummy and both of
them, and prints a Markdown table. All three must give the same engines, byte for byte. ``--limit``
fails if a peak is above it; ``--data-limit`` runs each export under that RLIMIT_DATA.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

from skipdec.engines.memory_size import parse_memory_size
from skipdec.exporter.dummy import DummyReader
from skipdec.exporter.families import family_config
from skipdec.exporter.model_config import model_spec
from skipdec.exporter.weights import expected_tensors

SHARD_BYTES = 1 << 30
PREFIX = {"safetensors": "model", "bin": "pytorch_model"}

Tensors = dict[str, np.ndarray]


def main() -> None:
    """Run the three exports and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a published OPT, e.g. opt-1.3b")
    parser.add_argument("--limit", default="1TB", help="largest peak allowed")
    parser.add_argument("--data-limit", help="RLIMIT_DATA of each export")
    parser.add_argument("--directory", type=Path, help="where to write; default: temporary")
    options, flags = parser.parse_known_args()
    limit = parse_memory_size(options.limit, "--limit")
    data_limit = options.data_limit and parse_memory_size(options.data_limit, "--data-limit")
    engines, failed = set(), False
    print(
        f"| {options.model} {' '.join(flags)} | peak RssAnon | seconds |\n|---|---|---|", flush=True
    )
    with tempfile.TemporaryDirectory(dir=options.directory) as scratch:
        for load_format in ("dummy", "safetensors", "bin"):
            source = Path(scratch, "checkpoint")
            if load_format != "dummy":
                write_checkpoint(source, options.model, load_format)
            # torch maps .bin files privately, which RLIMIT_DATA counts though nothing is written.
            mapped = sum(path.stat().st_size for path in source.glob("*.bin"))
            allowed = data_limit and data_limit + mapped
            report = export(options, load_format, source, flags, Path(scratch), allowed)
            engines.add(engine_hashes(Path(report["output"])))
            seconds = sum(report["stage_seconds"].values())
            failed |= report["peak_memory"] > limit
            peak = f"{report['peak_memory'] / 1e6:,.0f} MB"
            print(f"| {load_format} | {peak} | {seconds:.0f} |", flush=True)
            shutil.rmtree(report["output"])
            shutil.rmtree(source, ignore_errors=True)
    if len(engines) > 1:
        sys.exit("the three exports differ in their engines")
    if failed:
        sys.exit(f"a peak is above {options.limit}")


def export(
    options: argparse.Namespace,
    load_format: str,
    source: Path,
    flags: list[str],
    scratch: Path,
    data_limit: int | None,
) -> dict[str, object]:
    """Run ``skipdec export`` in a process of its own and return its report."""

    def restrict() -> None:
        if data_limit:
            resource.setrlimit(resource.RLIMIT_DATA, (data_limit, data_limit))

    model = options.model if load_format == "dummy" else str(source)
    command = [sys.executable, "-c", "from skipdec.cli import export_main; export_main()", model]
    command += ["--load-format", load_format, "--no-verify", "--json", "-q", *flags]
    command += ["-o", str(scratch / "bundle")]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, preexec_fn=restrict)
    return json.loads(done.stdout)


def write_checkpoint(directory: Path, name: str, load_format: str) -> None:
    """Write random weights of the published model ``name`` in shards of about 1 GiB."""
    config = family_config(name)
    if config is None:
        sys.exit(f"{name} is not a published OPT")
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    weight_map = {}
    for number, shard in enumerate(
        shards(DummyReader(expected_tensors(model_spec(config, name)), 0))
    ):
        file = f"{PREFIX[load_format]}-{number:05d}.{load_format}"
        if load_format == "bin":
            torch.save({k: torch.from_numpy(v) for k, v in shard.items()}, directory / file)
        else:
            save_file(shard, directory / file)
        weight_map |= dict.fromkeys(shard, file)
    index = directory / f"{PREFIX[load_format]}.{load_format}.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))


def shards(reader: DummyReader) -> Iterator[Tensors]:
    """Yield all tensors, as published checkpoints name them, about 1 GiB at a time."""
    shard: Tensors = {}
    for name in sorted(reader.names()):
        shard[f"model.{name}"] = reader.read(name)
        if sum(array.nbytes for array in shard.values()) > SHARD_BYTES:
            yield shard
            shard = {}
    yield shard


def engine_hashes(bundle: Path) -> tuple[tuple[str, str], ...]:
    """Path and SHA-256 of every engine file, from the manifest."""
    files = json.loads((bundle / "manifest.json").read_text())["files"]
    return tuple((f["path"], f["sha256"]) for f in files if f["path"].startswith("engines/"))


if __name__ == "__main__":
    main()
