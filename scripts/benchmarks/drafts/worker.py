"""Continue prompts with one engine, in a process of its own; `peers` starts it.

    python worker.py ENGINE DIRECTORY THREADS '{"draft": "own"}'

An input line is ``{"prompts": [[ids]], "max_tokens": 64, "eos": 2, "options": {}}``, an output line
``{"seconds": […], "texts": [[ids]], "passes": […]}``: one prompt at a time, greedily, up to the end
of text. A pass is a run of the whole model behind the prompt's; null where an engine does not
tell. The command line has the options of loading, a request those of its calls. This runs in two
environments: skipdec's own, which has transformers, and the peers'.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the peers' environment may lack them
    import torch
    from transformers import PretrainedConfig

Written = tuple[list[int], int | None]  # the text, and its passes
Options = Mapping[str, Any]
Continue = Callable[[list[int], int, int, Options], Written]  # prompt, max_tokens, eos


def skipdec_engine(directory: str, threads: int, options: Options) -> Continue:
    """Run ``Generator.generate`` at full depth, opened with a draft text or none."""
    from skipdec import Generator, SamplingParams, use_shared_thread_pool

    use_shared_thread_pool(threads)
    generator = Generator.open(directory, weights="copied", schedule="full", **options)

    def run(prompt: list[int], max_tokens: int, eos: int, options: Options) -> Written:
        params = SamplingParams(temperature=0, max_tokens=max_tokens)
        (output,) = generator.generate([prompt], params, **options)
        text = output.outputs[0]
        drafts = text.drafts
        return list(text.token_ids), drafts.passes if drafts else len(text.token_ids) - 1

    return run


def transformers_engine(directory: str, threads: int, options: Options) -> Continue:
    """Run ``generate`` in float32; options of a request go to it."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, **options)
    config, depth = model.config, model.config.num_hidden_layers
    exit_early(model.model.decoder, config)
    passes = 0

    def count(*_: object) -> None:
        nonlocal passes
        passes += config.num_hidden_layers == depth

    model.register_forward_pre_hook(count)

    def run(prompt: list[int], max_tokens: int, eos: int, options: Options) -> Written:
        nonlocal passes
        passes = 0
        input_ids = torch.tensor([prompt])
        output = model.generate(
            input_ids,
            attention_mask=torch.ones_like(input_ids),
            do_sample=False,
            max_new_tokens=max_tokens,
            eos_token_id=eos,
            **options,
        )
        return output[0, len(prompt) :].tolist(), passes - 1

    return run


def exit_early(decoder: torch.nn.Module, config: PretrainedConfig) -> None:
    """Let an OPT run as many layers as its configuration says at the time.

    ``assistant_early_exit`` lowers that number while it drafts, but OPT's decoder runs all of its
    layers in any case: its drafts would cost as much as full depth.
    """
    import torch

    class Layers(torch.nn.ModuleList):
        def __iter__(self) -> Iterator[torch.nn.Module]:
            return islice(super().__iter__(), config.num_hidden_layers)

    layers = decoder.layers
    assert isinstance(layers, torch.nn.ModuleList)
    decoder.layers = Layers(layers)


def openvino_engine(directory: str, threads: int, options: Options) -> Continue:
    """Run OpenVINO GenAI's ``LLMPipeline``, without prefix caching between prompts.

    Options of a request are those of its GenerationConfig.
    """
    import numpy as np
    import openvino
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    pipeline = openvino_genai.LLMPipeline(
        directory,
        "CPU",
        scheduler_config=scheduler,
        ATTENTION_BACKEND="PA",
        PERFORMANCE_HINT="LATENCY",
        INFERENCE_NUM_THREADS=threads,
        **options,
    )

    def run(prompt: list[int], max_tokens: int, eos: int, options: Options) -> Written:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.do_sample = max_tokens, False
        config.set_eos_token_id(eos)
        for name, value in options.items():
            setattr(config, name, value)
        input_ids = np.array([prompt], np.int64)
        tensors = [openvino.Tensor(array) for array in (input_ids, np.ones_like(input_ids))]
        results = pipeline.generate(openvino_genai.TokenizedInputs(*tensors), config)
        return list(results.tokens[0]), None

    return run


ENGINES: dict[str, Callable[[str, int, Options], Continue]] = {
    "skipdec": skipdec_engine,
    "transformers": transformers_engine,
    "openvino": openvino_engine,
}


def main(engine: str, directory: str, threads: str, options: str) -> None:
    """Answer requests from stdin until it is closed."""
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries may print to stdout
    run = ENGINES[engine](directory, int(threads), json.loads(options))
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        found: dict[str, list[Any]] = {"seconds": [], "texts": [], "passes": []}
        for prompt in request["prompts"]:
            start = perf_counter()
            text, passes = run(prompt, request["max_tokens"], request["eos"], request["options"])
            found["seconds"].append(perf_counter() - start)
            found["texts"].append(text)
            found["passes"].append(passes)
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
