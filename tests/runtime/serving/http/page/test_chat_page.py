"""The page at / holds a conversation in a real browser, if the bundle has a chat template."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from http_servers import Running, held_steps, serving
from text_bundles import STRUCTURE, export_chat_bundle

from skipdec.runtime.serving.http.server import ServedBundle

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

MARKUP = "<img src=x>&amp;"  # short, because the bundle holds 64 bytes
TEMPLATE = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def server(
    checkpoint: Callable[[str], Path], bundle: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    directory = tmp_path_factory.mktemp("chat")
    chat = export_chat_bundle(checkpoint(STRUCTURE), directory, template=TEMPLATE)
    with serving(ServedBundle("chat", chat), ServedBundle("plain", bundle)) as running:
        yield running


@pytest.fixture
def page(browser: Browser, server: Running) -> Iterator[Page]:
    """Yield the page on a phone; it must log no error and load nothing from elsewhere."""
    page = browser.new_page(viewport={"width": 360, "height": 800})
    errors, addresses = list[str](), list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: addresses.append(request.url))
    page.goto(server.url)
    page.locator("#modes").wait_for()
    page.fill("#tokens", "3")
    yield page
    assert errors == []
    assert all(address.startswith(server.url) for address in addresses)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.close()


def send(page: Page, text: str) -> dict[str, Any]:
    """Send a message by Enter, wait for its answer, and return the request's body."""
    page.fill("#prompt", text)
    with page.expect_request("**/v1/chat/completions") as request:
        page.press("#prompt", "Enter")
    page.locator("#stop:disabled").wait_for()
    body: dict[str, Any] = request.value.post_data_json
    return body


def test_messages_are_sent_with_the_earlier_conversation(page: Page) -> None:
    page.fill("#system", "Be brief.")
    first = send(page, MARKUP)
    system, message = (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": MARKUP},
    )
    assert first["messages"] == [system, message]
    assert page.locator(".message").inner_text() == MARKUP
    assert page.locator(".runs img").count() == 0
    answer = {"role": "assistant", "content": page.evaluate("messages[1].content")}
    second = send(page, "more")
    assert second["messages"] == [system, message, answer, {"role": "user", "content": "more"}]
    assert page.locator("h2").all_inner_texts() == ["user", "assistant, full"] * 2
    assert page.locator(".figures").last.inner_text().startswith("3 tokens, ")


def test_stop_keeps_partial_answers_and_clear_starts_over(page: Page) -> None:
    page.fill("#tokens", "40")
    page.fill("#prompt", "Once")
    with held_steps():
        page.click("#run")
        page.locator(".text span").first.wait_for(state="attached")
        page.click("#stop")
        page.locator("#stop:disabled").wait_for()
    roles = page.evaluate("messages.map(one => one.role)")
    assert roles == ["user", "assistant"]
    page.click("#clear")
    assert page.locator("section").count() == 0
    assert len(send(page, "again")["messages"]) == 1


def test_a_refused_message_returns_to_its_field(page: Page) -> None:
    page.fill("#tokens", "4000")
    page.fill("#prompt", "too long")
    page.click("#run")
    page.get_by_role("alert").get_by_text("lower max_tokens").wait_for()
    assert page.input_value("#prompt") == "too long"
    assert page.locator("section").count() == 0
    page.fill("#tokens", "2")
    assert [one["content"] for one in send(page, "short")["messages"]] == ["short"]


def test_answers_are_escaped_and_drafted_tokens_marked(page: Page) -> None:
    parts = [(MARKUP, False), ("b", True)]
    choices = [
        {
            "index": 0,
            "delta": {"content": text},
            "logprobs": {"content": [{"token": text, "logprob": -1.0}]},
            "layers_per_token": [6],
            "layer_ranges": {"6": [[0, 5]]},
            "drafted": [drafted],
        }
        for text, drafted in parts
    ]
    lines = [f"data: {json.dumps({'choices': [choice]})}\n\n" for choice in choices]
    body = "".join([*lines, "data: [DONE]\n\n"])
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(body=body, content_type="text/event-stream"),
    )
    send(page, "a")
    tokens = page.locator("section:last-child .text span")
    assert tokens.all_inner_texts() == [MARKUP, "b"]
    drafted = tokens.evaluate_all("all => all.map(one => one.classList.contains('drafted'))")
    assert drafted == [False, True]
    assert page.evaluate("messages[1].content") == f"{MARKUP}b"


def test_completions_are_a_mode_and_the_only_one_without_a_template(page: Page) -> None:
    page.select_option("#mode", "completion")
    assert page.locator("#right").is_visible()
    assert page.locator("#system").is_hidden()
    page.select_option("#mode", "chat")
    page.select_option("#model", "plain")
    assert page.locator("#modes").is_hidden()
    assert page.locator("#right").is_visible()
    page.fill("#prompt", "a")
    page.fill("#tokens", "2")
    with page.expect_request("**/v1/completions"):
        page.click("#run")
    page.locator("#stop:disabled").wait_for()
    assert page.locator(".figures").count() == 2
