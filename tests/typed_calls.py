"""Calls that only mypy reads, to show what type checkers and editors know about arguments.

Each comment names the error on its line; an unnecessary comment is an error.
"""

from __future__ import annotations

from pathlib import Path

from skipdec import ExportConfig, Generator, OpenOptions, SamplingParams

SamplingParams(temperature=0, stop=["END"], stop_token_ids=(2, 5))
SamplingParams(stop="END", max_tokens=None)
SamplingParams(temperatur=1)  # type: ignore[call-arg]
SamplingParams(max_tokens="16")  # type: ignore[arg-type]
OpenOptions(kv_memory="2GiB", prefix_cache=False)
OpenOptions(kv_memoryy=1)  # type: ignore[call-arg]
ExportConfig(model="opt", output=Path("bundle"))
ExportConfig(output=Path("bundle"))  # type: ignore[call-arg]


def texts(generator: Generator) -> None:
    """Pass prompts in all their forms."""
    for prompts in ("a", ["a"], [[2, 5]]):
        generator.generate(prompts)
    generator.generate({"prompt": "a"})
    generator.generate(["a", [2, 5], {"prompt": "a"}, {"prompt_token_ids": [2, 5]}])
    generator.generate([{"messages": [{"role": "user", "content": "a"}]}])
    generator.generate([2, 5])  # type: ignore[list-item]
    generator.generate("a", {"n": 2})  # type: ignore[dict-item]
    generator.generate(None)  # type: ignore[arg-type]
    generator.stream("a").close()
