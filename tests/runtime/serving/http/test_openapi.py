"""Requests made from /openapi.json, valid or not, never cause a server error."""

from __future__ import annotations

from typing import Any

import pytest
from http_servers import Running
from hypothesis import HealthCheck, given, settings

EXAMPLES = 15  # per endpoint


def test_the_document_has_the_chat_fields_that_clients_send(server: Running) -> None:
    paths = server.http.get("/openapi.json").json()["paths"]
    body = paths["/v1/chat/completions"]["post"]["requestBody"]["content"]
    fields = body["application/json"]["schema"]["properties"]
    assert fields["logprobs"]["type"] == fields["continue_final_message"]["type"] == "boolean"
    assert {"top_logprobs", "max_completion_tokens", "add_generation_prompt"} <= fields.keys()


@pytest.mark.slow
def test_requests_made_from_the_document_cause_no_server_error(server: Running) -> None:
    schemathesis = pytest.importorskip(
        "schemathesis", reason="schemathesis is not installed: pip install '.[clients]'"
    )
    document = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = set[str]()
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
        def is_answered(case: Any) -> None:  # noqa: ANN401  (a type of schemathesis, if installed)
            answer = case.call()
            assert answer.status_code < 500, answer.text

        is_answered()
        operations.add(operation.label)
    assert {"POST /v1/completions", "GET /v1/models/{name}", "GET /metrics"} <= operations
