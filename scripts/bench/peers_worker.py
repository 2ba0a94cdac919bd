"""One engine of bench_peers.py in a process of its own: loads once, answers timing requests.

A line in: ``{"batch": 8, "prompt": 32, "generate": 16}``. A line out: the seconds that it took to
continue ``batch`` prompts of ``prompt`` tokens by exactly ``generate`` tokens, greedily. Each
engine is driven the way its own documentation says. Runs in two environments: skipdec's own, and
the peers'.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Sequence
from time import perf_counter

Prompts = list[list[int]]
Continue = Callable[[Prompts, int], Sequence[Sequence[object]]]


def skipdec_engine(directory: str, threads: int) -> Continue:
    """``use_shared_thread_pool`` and ``Generator.generate``: what the README tells users."""
    from skipdec import Generator, SamplingParams, use_shared_thread_pool

    use_shared_thread_pool(threads)
    generator = Generator.open(directory)

    def run(prompts: Prompts, tokens: int) -> list[Sequence[int]]:
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        results = generator.generate(prompts, params, schedule="full")
        return [result.outputs[0].token_ids for result in results]

    return run


def ctranslate2_engine(directory: str, threads: int) -> Continue:
    """``Generator.generate_batch`` without the prompt in the result, so that it is batched."""
    import ctranslate2

    generator = ctranslate2.Generator(
        directory, device="cpu", inter_threads=1, intra_threads=threads
    )

    def run(prompts: Prompts, tokens: int) -> list[Sequence[int]]:
        results = generator.generate_batch(
            [[f"t{token}" for token in prompt] for prompt in prompts],
            beam_size=1,
            min_length=tokens,
            max_length=tokens,
            include_prompt_in_result=False,
        )
        return [result.sequences_ids[0] for result in results]

    return run


def openvino_engine(directory: str, threads: int) -> Continue:
    """optimum-intel's ``OVModelForCausalLM.generate``."""
    import torch
    from optimum.intel import OVModelForCausalLM

    config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
    model = OVModelForCausalLM.from_pretrained(directory, device="CPU", ov_config=config)

    def run(prompts: Prompts, tokens: int) -> list[Sequence[int]]:
        input_ids = torch.tensor(prompts)  # [B, S]
        output = model.generate(
            input_ids,
            attention_mask=torch.ones_like(input_ids),
            do_sample=False,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
        )
        token_ids: list[Sequence[int]] = output[:, input_ids.shape[1] :].tolist()
        return token_ids

    return run


ENGINES = {
    "skipdec": skipdec_engine,
    "ctranslate2": ctranslate2_engine,
    "openvino": openvino_engine,
}


def main(engine: str, directory: str, threads: str) -> None:
    """Answer requests from stdin until it is closed."""
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries may print
    run = ENGINES[engine](directory, int(threads))
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        draw = random.Random(0)
        prompts = [
            [draw.randrange(4, 50000) for _ in range(request["prompt"])]
            for _ in range(request["batch"])
        ]
        start = perf_counter()
        outputs = run(prompts, request["generate"])
        seconds = perf_counter() - start
        lengths = {len(output) for output in outputs}
        if len(outputs) != request["batch"] or lengths != {request["generate"]}:
            sys.exit(f"{engine} gave {len(outputs)} rows of {lengths} tokens, not {request}")
        print(seconds, file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
