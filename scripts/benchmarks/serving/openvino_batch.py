"""Run OpenVINO GenAI's continuous batching; started by `openvino_peer` in the peers' environment.

Reads JSON lines {"prompts": [[ids]], "max_tokens": [n]} and answers each with {"seconds", "texts"};
all requests wait from the start. Ends at EOF.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import openvino as ov
import openvino_genai as genai


def main(model: str, slots: int, threads: int, cache_gigabytes: int) -> None:
    """Answer line by line."""
    scheduler = genai.SchedulerConfig()
    scheduler.max_num_seqs = slots
    scheduler.cache_size = cache_gigabytes
    properties = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)
    for line in sys.stdin:
        wanted = json.loads(line)
        start = time.perf_counter()
        handles = []
        for number, (prompt, count) in enumerate(
            zip(wanted["prompts"], wanted["max_tokens"], strict=True)
        ):
            config = genai.GenerationConfig()
            config.max_new_tokens = config.min_new_tokens = count
            config.ignore_eos, config.do_sample = True, False
            ids = ov.Tensor(np.array([prompt], np.int64))
            handles.append(pipeline.add_request(number, ids, config))
        while pipeline.has_non_finished_requests():
            pipeline.step()
        seconds = time.perf_counter() - start
        texts = [handle.read_all()[0].generated_ids for handle in handles]
        print(json.dumps({"seconds": seconds, "texts": texts}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
