"""The page at / works in a real browser: light, dark, on a phone, without colour vision."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from http_servers import Running, serving

from skipdec.runtime.serving.http.server import ServedBundle

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TOKENS = 40


@dataclass(frozen=True)
class Look:
    name: str
    width: int = 1280
    colour_scheme: str = "light"
    vision: str = "none"


LOOKS = [
    Look("light"),
    Look("dark", colour_scheme="dark"),
    Look("phone", width=360),
    Look("grey", vision="achromatopsia"),
]


@pytest.fixture(params=LOOKS, ids=lambda look: look.name)
def shown(
    request: pytest.FixtureRequest, browser: Browser, server: Running, tmp_path: Path
) -> Iterator[Page]:
    """Yield the page after two schedules streamed; it must load nothing from elsewhere."""
    look: Look = request.param
    context = browser.new_context(
        viewport={"width": look.width, "height": 800},
        color_scheme=look.colour_scheme,  # type: ignore[arg-type]
    )
    page = context.new_page()
    vision = {"type": look.vision}
    context.new_cdp_session(page).send("Emulation.setEmulatedVisionDeficiency", vision)
    errors, addresses = list[str](), list[str]()
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda sent: addresses.append(sent.url))
    page.goto(server.url)
    page.locator("#left option").nth(1).wait_for(state="attached")
    assert page.input_value("#prompt") == ""  # a tuned model's prompts are unknown
    page.fill("#prompt", "name[Cotto]")
    page.fill("#tokens", str(TOKENS))
    page.fill("#temperature", "1")
    page.check("#together")
    page.click("#run")
    page.locator("#stop:disabled").wait_for()
    page.screenshot(path=tmp_path / f"{look.name}.png", full_page=True)
    yield page
    assert errors == []
    assert all(address.startswith(server.url) for address in addresses)
    context.close()


def rgb(colour: str) -> list[int]:
    return [int(value) for value in re.findall(r"\d+", colour)[:3]]


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG 2, 0 to 1."""
    parts = [value / 255 for value in rgb(colour)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def colours(page: Page, selector: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = page.eval_on_selector_all(
        selector,
        "all => all.map(one => ({title: one.title, back: one.style.background, "
        "text: one.style.color, shown: one.textContent}))",
    )
    return found


def test_two_schedules_stream_side_by_side_with_their_speeds(shown: Page) -> None:
    figures = shown.locator(".figures").all_inner_texts()
    assert len(figures) == 2
    for text in figures:
        count, speed = re.findall(r"^(\d+) tokens, (.+), first after", text)[0]
        assert 1 <= int(count) <= TOKENS
        assert ("tokens/s" in speed) == (int(count) >= 32)
    assert "6.0 of 6 layers" in figures[0]
    assert shown.locator("h2").all_inner_texts()[0] == "full"


def test_each_token_has_the_colour_of_its_layers(shown: Page) -> None:
    scale = {one["shown"]: one["back"] for one in colours(shown, "#scale span")}
    tokens = colours(shown, ".text span")
    assert tokens
    titles = [(re.search(r"([\d.]+) of 6 layers", one["title"]), one["back"]) for one in tokens]
    single = [(found[1], back) for found, back in titles if found and found[1] in scale]
    assert single  # tokens that share a character are shown together with their mean depth
    assert all(back == scale[layers] for layers, back in single)
    assert all(one["shown"] for one in tokens)


def test_colours_differ_in_lightness_and_contrast_with_their_text(shown: Page) -> None:
    scale = colours(shown, "#scale span")
    lightness = [luminance(one["back"]) for one in scale]
    assert len(scale) == 6
    assert all(later > 1.2 * earlier for earlier, later in pairwise(lightness))
    for one, back in zip(scale, lightness, strict=True):
        text = 0.0 if one["text"] in ("rgb(0, 0, 0)", "#000") else 1.0
        assert (max(text, back) + 0.05) / (min(text, back) + 0.05) >= 4.5


def test_the_picture_has_a_column_per_token_and_a_cell_per_layer(shown: Page) -> None:
    painted: list[Any] = shown.eval_on_selector_all(
        "canvas",
        "all => all.map(one => { const data = one.getContext('2d')"
        ".getImageData(0, 0, one.width, one.height).data;"
        " return [data.filter((v, i) => i % 4 === 3 && v > 0).length, one.ariaLabel]; })",
    )
    for (pixels, label), is_full in zip(painted, (True, False), strict=True):
        count, *layers = map(int, re.findall(r"\d+", label))
        assert len(layers) == count
        assert layers == sorted(layers, reverse=True)
        assert (set(layers) == {6}) == is_full or count == 1
        assert pixels > 0
    assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_an_error_is_shown_and_the_page_stays_usable(browser: Browser, server: Running) -> None:
    page = browser.new_page()
    page.goto(server.url)
    page.locator("#left option").nth(1).wait_for(state="attached")
    page.fill("#prompt", "name[Cotto]")
    page.fill("#tokens", "4000")
    page.click("#run")
    page.get_by_role("alert").get_by_text("lower max_tokens").wait_for()
    page.fill("#tokens", "3")
    page.click("#run")
    page.locator(".text span").first.wait_for(state="attached")
    assert not page.get_by_role("alert").inner_text()
    page.close()


def canned(ranges: dict[str, list[list[int]]], layers: list[int], **usage: float) -> str:
    """Return a stream of one token per chunk, which arrives at once as over a slow line."""
    choices = [
        {
            "index": 0,
            "text": "a",
            "logprobs": {"tokens": ["a"], "token_logprobs": [-1.0]},
            "finish_reason": None,
            "layers_per_token": [count],
            "layer_ranges": {str(count): ranges[str(count)]},
        }
        for count in layers
    ]
    documents = [{"choices": [choice]} for choice in choices] + [{"choices": [], "usage": usage}]
    lines = [f"data: {json.dumps(document)}\n\n" for document in documents]
    return "".join([*lines, "data: [DONE]\n\n"])


@pytest.mark.parametrize(
    ("ranges", "shown", "skipped"),
    [
        ({"6": [[0, 5]], "2": [[0, 0], [5, 5]]}, [0, 5], [1, 2, 3, 4]),
        ({"6": [[0, 5]], "2": [[0, 1]]}, [0, 1], [2, 3, 4, 5]),
        ({"6": [[0, 5]], "2": [[0, 0], [3, 3]]}, [0, 3], [1, 2, 4, 5]),
    ],
)
def test_columns_show_the_run_layers_and_figures_are_the_servers(
    browser: Browser,
    server: Running,
    ranges: dict[str, list[list[int]]],
    shown: list[int],
    skipped: list[int],
) -> None:
    page = browser.new_page()
    layers = [6, *[2] * 32]
    body = canned(ranges, layers, time_to_first_token=0.25, decode_seconds=2.0)
    page.route(
        "**/v1/completions",
        lambda route: route.fulfill(body=body, content_type="text/event-stream"),
    )
    page.goto(server.url)
    page.locator("#left option").nth(1).wait_for(state="attached")
    page.select_option("#right", "none")
    page.fill("#prompt", "a")
    page.fill("#tokens", "33")
    page.click("#run")
    page.locator(".figures", has_text="tokens/s").wait_for()
    figures = page.locator(".figures").inner_text()
    assert figures == "33 tokens, 16.0 tokens/s, first after 0.250 s, 2.0 of 6 layers"
    text = ", ".join(f"{a}" if a == b else f"{a}–{b}" for a, b in ranges["2"])
    assert page.locator(".text span").nth(2).get_attribute("title") == (
        f"2 of 6 layers: {text}, log-probability -1.00"
    )
    # The painted part of each cell of the third column: all of it where its layer ran.
    painted: list[float] = page.eval_on_selector(
        "canvas",
        """one => Array.from({length: 6}, (_, layer) => {
            const ratio = window.devicePixelRatio || 1, step = Math.min(16 * ratio, one.width / 33);
            const cell = one.height / 6, top = one.height - (layer + 1) * cell;
            const data = one.getContext('2d').getImageData(
                2 * step + 3, top + 3, step - 7, cell - 6).data;
            return data.filter((v, i) => i % 4 === 3 && v > 0).length / (data.length / 4);
        })""",
    )
    assert all(painted[layer] == 1 for layer in shown)
    assert all(painted[layer] < 0.5 for layer in skipped)
    page.close()


def test_the_end_mark_does_not_depend_on_how_tokens_arrive(
    browser: Browser, server: Running
) -> None:
    tokens = ["a", " b", "</s>"]
    texts = ["a", " b", ""]

    def stream(cuts: list[int]) -> str:
        parts = [slice(begin, end) for begin, end in pairwise([0, *cuts, 3])]
        choices = [
            {
                "index": 0,
                "text": "".join(texts[part]),
                "logprobs": {"tokens": tokens[part], "token_logprobs": [-1.0] * len(tokens[part])},
                "layers_per_token": [6] * len(tokens[part]),
                "layer_ranges": {"6": [[0, 5]]},
            }
            for part in parts
        ]
        return "".join(f"data: {json.dumps({'choices': [choice]})}\n\n" for choice in choices)

    page = browser.new_page()
    bodies = [stream([1, 2]), stream([1])]
    page.route(
        "**/v1/completions",
        lambda route: route.fulfill(body=bodies.pop(), content_type="text/event-stream"),
    )
    page.goto(server.url)
    page.locator("#left option").nth(1).wait_for(state="attached")
    page.fill("#prompt", "a")
    page.click("#run")
    page.locator("#stop:disabled").wait_for()
    assert page.locator(".text").all_inner_texts() == ["a b·", "a b·"]
    assert page.locator(".text .blank").count() == 2
    page.close()


def test_a_schedule_with_several_names_is_offered_once(browser: Browser, bundle: Path) -> None:
    with serving(ServedBundle("tiny", bundle), schedules=("3x", "2x:horizon=4")) as running:
        (listed,) = running.http.get("/v1/schedules").json()["data"]
        names = {entry["resolved"] for entry in listed["allowed"]}
        page = browser.new_page()
        page.goto(running.url)
        page.locator("#left option").nth(1).wait_for(state="attached")
        shown = page.locator("#left option").all_inner_texts()
        assert len(names) < len(listed["allowed"])
        assert shown == ["full", "2x:horizon=4 (default)", "3x"]
        page.close()


def test_a_deep_model_has_a_short_legend(browser: Browser, server: Running) -> None:
    page = browser.new_page()
    page.goto(server.url)
    assert page.evaluate("marks(30)") == [1, 7, 13, 18, 24, 30]
    assert page.evaluate("marks(3)") == [1, 2, 3]
    page.close()


def test_the_page_asks_for_a_key_if_the_server_needs_one(
    browser: Browser, bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text("secret\n")
    with serving(ServedBundle("tiny", bundle), wait=False, api_key_file=tmp_path / "keys") as held:
        held.wait_until(lambda figures: held.http.get("/health/ready").status_code == 200)
        page = browser.new_page()
        page.goto(held.url)
        page.locator("#access").wait_for(state="visible")
        assert page.evaluate("document.activeElement.id") == "key"
        page.fill("#key", "wrong")
        page.click("#access button")
        page.get_by_role("alert").get_by_text("does not know this API key").wait_for()
        page.fill("#key", "secret")
        page.click("#access button")
        page.locator("#left option").nth(1).wait_for(state="attached")
        assert page.locator("#access").is_hidden()
        page.fill("#prompt", "a")
        page.fill("#tokens", "2")
        page.click("#run")
        page.locator(".figures", has_text="2 tokens, too few for a speed").first.wait_for()
        page.reload()
        page.locator("#left option").nth(1).wait_for(state="attached")
        assert page.locator("#access").is_hidden()
        assert page.evaluate("localStorage.length") == 0
        page.close()


def test_the_page_asks_for_no_key_if_the_server_needs_none(
    browser: Browser, server: Running
) -> None:
    page = browser.new_page()
    page.goto(server.url)
    page.locator("#left option").nth(1).wait_for(state="attached")
    assert page.locator("#access").is_hidden()
    page.close()
