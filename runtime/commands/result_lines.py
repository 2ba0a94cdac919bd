"""Results as lines of JSON; `runtime.batches.records` reads the lines that they answer.

{"id": "a1", "text": "French], area", "token_ids": [84, 269, 12], "finish_reason": "length",
 "layers_per_token": [12, 8, 8], "layer_ranges": {"8": [[0, 0], [5, 11]], "12": [[0, 11]]}}
"""

from __future__ import annotations

import json
from typing import Any

from ..requests.records import RecordId
from ..tokens.outputs import CompletionOutput, Logprob, RequestOutput


def result_line(record_id: RecordId, request: RequestOutput) -> dict[str, Any]:
    """Return the line of one record.

    With one completion its fields stand at the top, with more (``n``) in a list ``outputs``.
    """
    ranges = {"layer_ranges": dict(sorted(request.layer_ranges.items()))}
    if len(request.outputs) == 1:
        return {"id": record_id} | _completion(request.outputs[0]) | ranges
    listed = [{"index": output.index} | _completion(output) for output in request.outputs]
    return {"id": record_id, "outputs": listed} | ranges


def to_bytes(line: dict[str, Any]) -> bytes:
    """Return one line of JSON with its line feed, in UTF-8."""
    return json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _completion(output: CompletionOutput) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "text": output.text,
        "token_ids": output.token_ids,
        "finish_reason": output.finish_reason,
        "layers_per_token": output.layers_per_token,
    }
    if output.stop_reason is not None:
        fields["stop_reason"] = output.stop_reason
    if output.logprobs is not None:
        fields["cumulative_logprob"] = output.cumulative_logprob
        fields["logprobs"] = [_logprobs(token) for token in output.logprobs]
    return fields


def _logprobs(token: dict[int, Logprob]) -> list[dict[str, Any]]:
    """Candidates for one token, the chosen one first."""
    return [
        {
            "token_id": token_id,
            "logprob": entry.logprob,
            "rank": entry.rank,
            "decoded_token": entry.decoded_token,
        }
        for token_id, entry in token.items()
    ]
