"""Output lines have exactly the documented fields."""

from __future__ import annotations

import json

from skipdec.runtime.commands.results import result_line, to_bytes
from skipdec.runtime.tokens.outputs import CompletionOutput, Logprob, RequestOutput


def completion(**fields: object) -> CompletionOutput:
    return CompletionOutput(
        **{
            "index": 0,
            "text": "é",
            "token_ids": (5, 6),
            "finish_reason": "length",
            "layers_per_token": (6, 4),
            **fields,
        }
    )


def request(*outputs: CompletionOutput) -> RequestOutput:
    ranges = {6: ((0, 5),), 4: ((0, 0), (3, 5))}
    return RequestOutput("0", "a", (5,), outputs, finished=True, layer_ranges=ranges)


def test_result_line_of_one_completion() -> None:
    line = to_bytes(result_line("a", request(completion())))
    assert line.decode() == (
        '{"id": "a", "text": "é", "token_ids": [5, 6], "finish_reason": "length", '
        '"layers_per_token": [6, 4], "layer_ranges": {"4": [[0, 0], [3, 5]], "6": [[0, 5]]}}\n'
    )


def test_result_line_of_several_completions_lists_them() -> None:
    line = result_line(1, request(completion(), completion(index=1, stop_reason="x")))
    assert [output["index"] for output in line["outputs"]] == [0, 1]
    assert line["outputs"][1]["stop_reason"] == "x"
    assert "text" not in line


def test_a_result_line_has_requested_log_probabilities() -> None:
    output = completion(cumulative_logprob=-1.5, logprobs=({5: Logprob(-1.5, 2, "e")},))
    line = json.loads(to_bytes(result_line(1, request(output))))
    entry = {"token_id": 5, "logprob": -1.5, "rank": 2, "decoded_token": "e"}
    assert (line["cumulative_logprob"], line["logprobs"]) == (-1.5, [[entry]])
