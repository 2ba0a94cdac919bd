"""Run one engine of bench.py peers in its own process: load once, answer timing requests.

    python worker.py ENGINE DIRECTORY THREADS '{"compute_type": "int8"}'

An input line is ``{"rows": 8, "prompt": 32, "generate": 16, "seed": 3}``, an output line the
seconds taken to continue ``rows`` random prompts of ``prompt`` tokens by exactly ``generate``
tokens, greedily. Each engine is used as its documentation recommends. This runs in two
environments: skipdec's own, and the peers'.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

Prompts = list[list[int]]
Continue = Callable[[Prompts, int], Sequence[Sequence[object]]]
Options = Mapping[str, object]

_LLAMA_ROWS = 8  # sequences of a context, and tokens of each
_LLAMA_LENGTH = 1024


def skipdec_engine(directory: str, threads: int, options: Options) -> Continue:
    """Run ``use_shared_thread_pool`` and ``Generator.generate``, as the README recommends."""
    from skipdec import Generator, SamplingParams, use_shared_thread_pool

    use_shared_thread_pool(threads)
    generator = Generator.open(directory, **options)  # type: ignore[arg-type]

    def run(prompts: Prompts, tokens: int) -> list[Sequence[int]]:
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        results = generator.generate(prompts, params, schedule="full")
        return [result.outputs[0].token_ids for result in results]

    return run


def ctranslate2_engine(directory: str, threads: int, options: Options) -> Continue:
    """Run ``Generator.generate_batch`` without the prompt in the result, so that it is batched."""
    import ctranslate2

    generator = ctranslate2.Generator(
        directory, device="cpu", inter_threads=1, intra_threads=threads, **options
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


def optimum_engine(directory: str, threads: int, options: Options) -> Continue:
    """Run optimum-intel's ``OVModelForCausalLM.generate``."""
    import torch
    from optimum.intel import OVModelForCausalLM

    config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, **options}
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


def genai_engine(directory: str, threads: int, options: Options) -> Continue:
    """Run OpenVINO GenAI's ``LLMPipeline`` without prefix caching between prompts."""
    import numpy as np
    import openvino
    import openvino_genai

    properties = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, **options}
    if options["ATTENTION_BACKEND"] == "PA":
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        properties["scheduler_config"] = scheduler
    pipeline = openvino_genai.LLMPipeline(directory, "CPU", **properties)

    def run(prompts: Prompts, tokens: int) -> list[Sequence[int]]:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = tokens
        config.ignore_eos = True
        config.do_sample = False
        input_ids = np.array(prompts, np.int64)  # [B, S]
        tensors = [openvino.Tensor(array) for array in (input_ids, np.ones_like(input_ids))]
        results = pipeline.generate(openvino_genai.TokenizedInputs(*tensors), config)
        return list(results.tokens)

    return run


def llama_cpp_engine(directory: str, threads: int, options: Options) -> Continue:
    """Run ``llama_decode`` on one context with a sequence per row."""
    import ctypes

    import llama_cpp
    import numpy as np

    llama_cpp.llama_backend_init()
    model_parameters = llama_cpp.llama_model_default_params()
    model_parameters.use_mmap = False
    model = llama_cpp.llama_model_load_from_file(
        f"{directory}/model.gguf".encode(), model_parameters
    )
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_seq_max = _LLAMA_ROWS
    parameters.n_ctx = _LLAMA_ROWS * _LLAMA_LENGTH
    parameters.n_batch = _LLAMA_ROWS * _LLAMA_LENGTH
    parameters.n_threads = parameters.n_threads_batch = threads
    for name, value in options.items():
        setattr(parameters, name, value)
    context = llama_cpp.llama_init_from_model(model, parameters)
    batch = llama_cpp.llama_batch_init(_LLAMA_ROWS * _LLAMA_LENGTH, 0, 1)

    def decode(tokens: Sequence[tuple[int, int, int, bool]]) -> list[int]:
        """Feed (token, position, row, wants logits); return the most probable next tokens."""
        batch.n_tokens = len(tokens)
        for index, (token, position, row, wants_logits) in enumerate(tokens):
            batch.token[index] = token
            batch.pos[index] = position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = row
            batch.logits[index] = wants_logits
        if llama_cpp.llama_decode(context, batch) != 0:
            sys.exit("llama_decode failed")
        chosen = []
        for index, (*_, wants_logits) in enumerate(tokens):
            if wants_logits:
                logits = llama_cpp.llama_get_logits_ith(context, index)
                address = ctypes.cast(logits, ctypes.POINTER(ctypes.c_float))
                chosen.append(int(np.ctypeslib.as_array(address, (vocabulary,)).argmax()))
        return chosen

    def run(prompts: Prompts, tokens: int) -> list[list[int]]:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        length = len(prompts[0])
        last = decode(
            [
                (token, position, row, position == length - 1)
                for row, prompt in enumerate(prompts)
                for position, token in enumerate(prompt)
            ]
        )
        rows = [[token] for token in last]
        for position in range(length, length + tokens - 1):
            last = decode([(token, position, row, True) for row, token in enumerate(last)])
            for row, token in zip(rows, last, strict=True):
                row.append(token)
        return rows

    return run


def onnxruntime_genai_engine(directory: str, threads: int, options: Options) -> Continue:
    """Run ``onnxruntime_genai.Generator``, token by token."""
    import numpy as np
    import onnxruntime_genai

    config = onnxruntime_genai.Config(directory)
    config.overlay(
        json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}})
    )
    model = onnxruntime_genai.Model(config)

    def run(prompts: Prompts, tokens: int) -> list[Sequence[int]]:
        parameters = onnxruntime_genai.GeneratorParams(model)
        length = len(prompts[0])
        parameters.set_search_options(
            do_sample=False,
            batch_size=len(prompts),
            min_length=length + tokens,
            max_length=length + tokens,
            **options,
        )
        generator = onnxruntime_genai.Generator(model, parameters)
        generator.append_tokens(np.array(prompts, np.int32))  # [B, S]
        while not generator.is_done():
            generator.generate_next_token()
        return [generator.get_sequence(row)[length:] for row in range(len(prompts))]

    return run


ENGINES: dict[str, Callable[[str, int, Options], Continue]] = {
    "skipdec": skipdec_engine,
    "ctranslate2": ctranslate2_engine,
    "optimum": optimum_engine,
    "genai": genai_engine,
    "llama.cpp": llama_cpp_engine,
    "onnxruntime-genai": onnxruntime_genai_engine,
}


def main(engine: str, directory: str, threads: str, options: str) -> None:
    """Answer requests from stdin until it is closed."""
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries may print to stdout
    run = ENGINES[engine](directory, int(threads), json.loads(options))
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        draw = random.Random(request["seed"])
        prompts = [
            [draw.randrange(4, 50000) for _ in range(request["prompt"])]
            for _ in range(request["rows"])
        ]
        start = perf_counter()
        outputs = run(prompts, request["generate"])
        seconds = perf_counter() - start
        lengths = {len(output) for output in outputs}
        if len(outputs) != request["rows"] or lengths != {request["generate"]}:
            sys.exit(f"{engine} gave {len(outputs)} rows of {lengths} tokens, not {request}")
        print(seconds, file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
