"""Whatever /openapi.json allows, or just does not: an answer, never a fault of the server."""

from __future__ import annotations

from typing import Any

import pytest
from http_servers import Running
from hypothesis import HealthCheck, given, settings

EXAMPLES = 15  # of an endpoint


def test_the_document_has_the_fields_of_chats_as_clients_send_them(server: Running) -> None:
    paths = server.http.get("/openapi.json").json()["paths"]
    body = paths["/v1/chat/completions"]["post"]["requestBody"]["content"]
    fields = body["application/json"]["schema"]["properties"]
    assert fields["logprobs"]["type"] == fields["continue_final_message"]["type"] == "boolean"
    assert {"top_logprobs", "max_completion_tokens", "add_generation_prompt"} <= fields.keys()


@pytest.mark.slow
def test_requests_made_from_the_document_are_answered_without_a_fault(server: Running) -> None:
    schemathesis = pytest.importorskip(
        "schemathesis", reason="schemathesis is not installed: pip install '.[clients]'"
    )
    document = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    asked = set[str]()
    for found in document.get_all_operations():
        operation = found.ok()

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def is_answered(case: Any) -> None:  # noqa: ANN401  (of schemathesis, where it is)
            answer = case.call()
            assert answer.status_code < 500, answer.text

        is_answered()
        asked.add(operation.label)
    assert {"POST /v1/completions", "GET /v1/models/{name}", "GET /metrics"} <= asked
