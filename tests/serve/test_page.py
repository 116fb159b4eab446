"""The page in a real browser, before the real service in a process of its own."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright
from tests.serve.conftest import Started, picture_of
from tests.serve.test_hostile import hostile_lines

from konvoi.serve.limits import MAX_PICTURE_BYTES, MAX_TEXT_CHARACTERS

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

PATIENCE_MS = 60_000
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
TOKEN = "open-sesame-0123456789"
TEXT = "A dog runs through the snow. Two men play.\n\n  A woman sings."
HOSTILE = """<img src=x onerror=alert(1)> <script>alert(2)</script> </textarea><b>bold</b> &lt;i&gt;
{{7*7}} ${alert(3)} javascript:alert(4) \u202eright to left\u202c שלום עולם 🐕‍🦺 \x07 "quoted' `text`"""

PANES = "#target *, #mirror *"

OpenPage = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        expect.set_options(timeout=PATIENCE_MS)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(started: Started, trained_run: Path, image_run: Path) -> Iterator[str]:
    with started(trained_run, image_run) as (address, _):
        yield address


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Opens the page as a visitor with nothing remembered. Whatever happens, nothing leaves the origin, and the browser
    complains of nothing but the refusals that are expected."""
    complaints: list[str] = []
    contexts = []
    expected: list[str] = []

    def open_page(address: str, *refusals: str, **options: Any) -> Page:
        context = browser.new_context(**options)
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        expected.extend(refusals)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: request.url.startswith(address) or complaints.append(f"left: {request.url}"))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [one for one in complaints if not any(refusal in one for refusal in expected)] == []


def ask(address: str, **question: Any) -> dict[str, Any]:
    answer: dict[str, Any] = httpx.post(f"{address}/api/translate", json=question, timeout=60).raise_for_status().json()
    return answer


def type_text(page: Page, text: str) -> None:
    """And wait for the whole translation."""
    page.get_by_label("English").fill(text)
    expect(page.locator("#time")).to_have_text(re.compile(r"^[\d.]+ s$"))


def show_pictures(page: Page) -> None:
    page.get_by_role("button", name="Pictures").click()


def scrolls_sideways(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


def test_what_is_typed_is_translated_as_the_api_does_it_with_its_white_space(open_page, address):
    page = open_page(address)
    type_text(page, TEXT)
    expected = ask(address, text=TEXT)["text"]
    assert expected.strip() and "\n\n  " in expected
    assert page.locator("#target").text_content() == expected
    assert page.locator("#target .sentence").count() == 3
    expect(page.locator("#length")).to_have_text(f"{len(TEXT)} of {MAX_TEXT_CHARACTERS:,} characters")


def test_the_panes_say_their_languages_to_people_and_to_screen_readers(open_page, address):
    page = open_page(address)
    expect(page.get_by_label("English")).to_have_attribute("lang", "en")
    expect(page.get_by_role("group", name="German")).to_have_attribute("lang", "de")
    expect(page.get_by_role("group", name="German")).to_have_attribute("aria-live", "polite")
    type_text(page, "A dog.")
    expect(page.get_by_role("group", name="German")).to_have_attribute("aria-busy", "false")


def test_an_older_answer_never_replaces_a_newer_one(open_page, address):
    page = open_page(address)
    held: list[Route] = []
    page.route("**/api/translate/stream", lambda route: held.append(route), times=1)
    with page.expect_request("**/api/translate/stream"):
        page.get_by_label("English").fill("Two men.")
    type_text(page, "A dog.")
    expected = ask(address, text="A dog.")["text"]
    expect(page.locator("#target")).to_have_text(expected)
    late = '{"source": "Two men.", "space": "", "translations": [{"text": "late", "attention": [], '
    held[0].fulfill(body=late + '"source_pieces": [], "target_pieces": []}]}\n{"seconds": 9}\n')
    page.wait_for_timeout(300)
    expect(page.locator("#target")).to_have_text(expected)


def test_without_text_nothing_of_the_last_translation_stays(open_page, address):
    page = open_page(address)
    type_text(page, TEXT)
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#target .sentence")).to_have_count(0)
    expect(page.get_by_role("button", name="Copy")).to_be_hidden()
    expect(page.get_by_label("English")).to_be_focused()


def test_the_translation_is_copied_as_text(open_page, address):
    page = open_page(address, permissions=["clipboard-read", "clipboard-write"])
    type_text(page, TEXT)
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == ask(address, text=TEXT)["text"]


def test_words_are_linked_by_the_sum_of_their_pieces_attention(open_page, address):
    page = open_page(address)
    translation = {
        "text": "Der Hund",
        "source_pieces": ["▁the", "▁d", "og"],
        "target_pieces": ["▁Der", "▁Hu", "nd"],
        # Der: the 0.6, dog 0.1 + 0.3 = 0.4, more than half of 0.6; Hund: the 0.2 + 0.2, dog 0.8 + 0.8
        "attention": [[0.6, 0.1, 0.3], [0.2, 0.4, 0.4], [0.2, 0.7, 0.1]],
    }
    links = "async ([source, one]) => (await import('/static/alignment.js')).linksOf(source, one)"
    assert page.evaluate(links, ["The dog", translation]) == [[0, 1], [1]]
    # three words cannot be those of the pieces
    assert page.evaluate(links, ["The big dog", translation]) is None


def test_pointing_at_a_word_lights_up_its_counterparts_in_both_directions(open_page, address):
    page = open_page(address)
    type_text(page, "A dog runs through the snow.")
    page.locator("#target .word").first.hover()
    expect(page.locator("#target .lit")).to_have_count(1)
    expect(page.locator("#mirror .lit")).not_to_have_count(0)
    lit = page.locator("#mirror .lit").first.bounding_box()
    page.mouse.move(1, 1)
    expect(page.locator(".lit")).to_have_count(0)
    # The text area lies over the mirror: pointing at the same place is pointing at what was typed.
    page.mouse.move(lit["x"] + lit["width"] / 2, lit["y"] + lit["height"] / 2)
    expect(page.locator("#mirror .lit")).to_have_count(1)
    expect(page.locator("#target .word").first).to_have_class("word lit")


def test_the_mirror_lies_letter_under_letter(open_page, address):
    page = open_page(address, **PHONE)
    type_text(page, "A dog runs through the snow. " * 20 + "\n\nTwo men.\n")
    heights = "() => ['source', 'mirror'].map((id) => document.getElementById(id).scrollHeight)"
    source, mirror = page.evaluate(heights)
    assert source == mirror


def test_alternatives_open_and_are_chosen_by_keyboard(open_page, address):
    page = open_page(address)
    type_text(page, "A dog runs.")
    (found,) = ask(address, sentences=["A dog runs."], num_best=5)["sentences"]
    sentence = page.locator("#target .sentence")
    # What is shown comes first, whether the wider search finds it or not; nothing comes twice, and no empty one.
    texts = [
        text
        for text in dict.fromkeys([sentence.text_content(), *(one["text"] for one in found["translations"])])
        if text
    ]
    assert len(texts) > 1
    page.get_by_label("English").press("Tab")
    page.keyboard.press("Tab")
    expect(sentence).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("option")).to_have_text(texts)
    expect(page.get_by_role("option", selected=True)).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("option")).to_have_count(0)
    page.keyboard.press("Enter")
    expect(page.get_by_role("option", selected=True)).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_role("option")).to_have_count(0)
    expect(sentence).to_have_text(texts[1])
    expect(sentence).to_be_focused()


def test_a_choice_stays_when_the_text_goes_on(open_page, address):
    page = open_page(address)
    type_text(page, "A dog runs.")
    page.locator("#target .sentence").click()
    other = page.get_by_role("option").nth(1)
    expect(other).to_be_visible()
    text = other.text_content()
    other.click()
    page.get_by_label("English").press("End")
    page.keyboard.type(" Two men play.")
    expect(page.locator("#target .sentence")).to_have_count(2)
    expect(page.locator("#target .sentence").first).to_have_text(text)


def test_arrow_keys_go_from_word_to_word_and_a_screen_reader_hears_of_it(open_page, address):
    page = open_page(address)
    type_text(page, "A dog runs through the snow.")
    page.locator("#target .sentence").first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#target .lit")).to_have_count(1)
    word = page.locator("#target .lit").text_content()
    counterparts = " ".join(page.locator("#mirror .lit").all_text_contents())
    expect(page.get_by_role("status").filter(has_text=word)).to_have_text(f"{word}: {counterparts}")


def test_hostile_text_stays_text(open_page, address):
    page = open_page(address)
    type_text(page, HOSTILE)
    page.locator("#target .sentence").first.click()
    expect(page.get_by_role("option").first).to_be_visible()
    made = page.locator("#target, #mirror").locator("img, script, textarea, i, a, iframe, b:has(*)")
    expect(made).to_have_count(0)
    assert "<script>alert(2)</script>" in page.locator("#mirror").text_content()


def test_a_thousand_hostile_lines_stay_text(open_page, started: Started, bundle: Path):
    """As few texts as the service takes; the lines of 100 kB are refused, in words, before they are sent."""
    *lines, first_long, second_long, third_long, fourth_long = hostile_lines()
    texts = ["\n".join(lines[start : start + 200]) for start in range(0, len(lines), 200)]
    with started(bundle) as (address, _):
        page = open_page(address, "status of 422")
        for text in texts:
            type_text(page, text)
            made = page.evaluate(f"[...document.querySelectorAll({PANES!r})].map((one) => one.tagName + one.className)")
            assert set(made) == {"SPANitem", "SPANsentence", "SPANword", "SPANspace"}
        for text in (first_long, second_long, fourth_long):
            page.get_by_label("English").fill(text)
            expect(page.get_by_text("characters too long")).to_be_visible()
        # 25,000 characters are not too many for a text, but for a sentence: the service says so.
        page.get_by_label("English").fill(third_long)
        expect(page.get_by_text("a sentence of 25,000 characters")).to_be_visible()


def test_the_theme_follows_the_system_until_the_switch_is_used_and_is_remembered(open_page, address):
    page = open_page(address, color_scheme="light")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(background)
    assert light != dark
    switch = page.get_by_role("switch", name="Dark colours")
    expect(switch).to_be_checked()
    switch.click()
    assert page.evaluate(background) == light
    page.reload()
    expect(switch).not_to_be_checked()
    assert page.evaluate(background) == light


def test_a_narrow_window_does_not_scroll_sideways(open_page, address):
    page = open_page(address, **PHONE)
    type_text(page, "A dog runs. " + "unbreakable" * 30)
    page.locator("#target .sentence").first.click()
    expect(page.get_by_role("option").first).to_be_visible()
    assert not scrolls_sideways(page)
    # Nor is anything cut off: no word ends beyond the pane.
    ends = "() => [...document.querySelectorAll('#mirror .word')].map((word) => word.getBoundingClientRect().right)"
    assert max(page.evaluate(ends)) <= 360
    panes = page.locator("#translation .pane")
    assert panes.nth(1).bounding_box()["y"] > panes.nth(0).bounding_box()["y"]
    show_pictures(page)
    assert not scrolls_sideways(page)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_stands_out_from_its_background(open_page, address, theme):
    page = open_page(address, "status of 422", color_scheme=theme)
    type_text(page, "A dog runs.")
    page.locator("#target .sentence").click()
    expect(page.get_by_role("option").first).to_be_visible()
    colours = page.evaluate(COLOURS_OF_TEXTS)
    show_pictures(page)
    page.locator("#file").set_input_files({"name": "no.png", "mimeType": "image/png", "buffer": b"no picture"})
    expect(page.locator("#picture-notice")).to_be_visible()
    colours += page.evaluate(COLOURS_OF_TEXTS)
    assert len(colours) > 20
    assert [one for one in colours if contrast(one[1], one[2]) < 4.5] == []


# Of every element with text of its own: the text, its colour, and the first background under it that is not clear.
COLOURS_OF_TEXTS = """() => [...document.querySelectorAll("body *")].filter((one) =>
    one.checkVisibility() && !one.closest("#mirror, noscript") &&
    [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim())
).map((one) => {
    const backgrounds = [];
    for (let place = one; place; place = place.parentElement) backgrounds.push(getComputedStyle(place).backgroundColor);
    return [one.textContent, getComputedStyle(one).color, backgrounds.find((colour) => colour !== "rgba(0, 0, 0, 0)")];
})"""


def contrast(first: str, second: str) -> float:
    """As WCAG 2 defines it: (lighter + 0.05) / (darker + 0.05)."""
    darker, lighter = sorted((luminance(first), luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    shares = [int(number) / 255 for number in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_contrast_is_as_defined():
    assert contrast("rgb(0, 0, 0)", "rgb(255, 255, 255)") == pytest.approx(21)


def test_a_text_that_is_too_long_is_told_and_not_sent(open_page, address):
    page = open_page(address)
    page.on("request", lambda request: pytest.fail("sent") if "translate" in request.url else None)
    page.get_by_label("English").fill("x" * (MAX_TEXT_CHARACTERS + 3))
    expect(page.locator("#translation-notice")).to_contain_text("3 characters too long")
    expect(page.locator("#length")).to_have_class("problem")


def test_a_busy_service_is_asked_again_when_it_said(open_page, address):
    page = open_page(address, "status of 429")
    busy = '{"error": {"problem": "too many at once", "hint": "come again in a second"}}'
    answer = {"status": 429, "body": busy, "headers": {"Retry-After": "1"}}
    page.route("**/api/translate/stream", lambda route: route.fulfill(**answer), times=1)
    page.get_by_label("English").fill("A dog.")
    expect(page.locator("#translation-notice")).to_contain_text("too many at once")
    expect(page.locator("#target")).to_have_text(ask(address, text="A dog.")["text"])
    expect(page.locator("#translation-notice")).to_be_hidden()


def test_a_picture_shows_with_the_bars_of_its_likeliest_classes(open_page, address):
    page = open_page(address)
    show_pictures(page)
    picture = picture_of(220)
    page.get_by_label("Choose a picture").set_input_files({"name": "a.png", "mimeType": "image/png", "buffer": picture})
    guesses = httpx.post(f"{address}/api/classify", content=picture, timeout=60).raise_for_status().json()["guesses"]
    assert len(guesses) == 2
    expect(page.locator(".guess .name")).to_have_text([guess["name"] for guess in guesses])
    shares = [guess["probability"] for guess in guesses]
    expect(page.locator(".guess .share")).to_have_text([f"{one:.1%}" if one >= 0.0005 else "< 0.1%" for one in shares])
    expect(page.get_by_role("img", name="Your picture")).to_be_visible()


GIVE = """([kind, numbers]) => {
    const data = new DataTransfer();
    data.items.add(new File([new Uint8Array(numbers)], "a.png", { type: "image/png" }));
    const event = kind === "drop" ? new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true })
        : new ClipboardEvent(kind, { clipboardData: data, bubbles: true });
    document.getElementById("drop").dispatchEvent(event);
}"""


@pytest.mark.parametrize("kind", ["drop", "paste"])
def test_a_picture_is_dropped_or_pasted(open_page, address, kind):
    page = open_page(address)
    show_pictures(page)
    page.evaluate(GIVE, [kind, list(picture_of(220))])
    expect(page.locator(".guess")).to_have_count(2)


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [(b"no picture", 422, "picture"), (b"x" * (MAX_PICTURE_BYTES + 1), 413, f"{MAX_PICTURE_BYTES / 1e6:.0f} MB")],
    ids=["no picture", "oversized"],
)
def test_what_cannot_be_looked_at_is_refused_in_the_services_words(
    open_page, address, tmp_path, content, status, words
):
    page = open_page(address, f"status of {status}")
    show_pictures(page)
    (tmp_path / "a.png").write_bytes(content)
    with page.expect_response("**/api/classify*") as response:
        page.locator("#file").set_input_files(tmp_path / "a.png")
    assert response.value.status == status
    expect(page.locator("#picture-notice")).to_contain_text(re.compile(re.escape(words)))
    expect(page.locator(".guess")).to_have_count(0)
    # and after it a picture is welcome
    page.locator("#file").set_input_files({"name": "b.png", "mimeType": "image/png", "buffer": picture_of(30)})
    expect(page.locator(".guess")).to_have_count(2)
    expect(page.locator("#picture-notice")).to_be_hidden()


def test_a_token_is_asked_for_until_it_is_right_and_kept_for_the_tab(open_page, started, trained_run):
    with started(trained_run, token=TOKEN) as (address, _):
        page = open_page(address, "status of 401")
        page.get_by_label("Token").fill("wrong-sesame-0123456789")
        page.get_by_role("button", name="Continue").click()
        expect(page.locator("#token-problem")).to_have_text("This is not the token.")
        expect(page.locator("#translation")).to_be_hidden()
        page.get_by_label("Token").fill(TOKEN)
        page.keyboard.press("Enter")
        type_text(page, "A dog.")
        page.reload()
        type_text(page, "Two men.")
        expect(page.get_by_label("Token")).to_be_hidden()
        assert page.evaluate("Object.values(localStorage)") == []


def test_several_translators_are_chosen_in_the_page(open_page, started, trained_run):
    with started(trained_run, trained_run) as (address, _):
        page = open_page(address)
        expect(page.locator("#tasks")).to_be_hidden()
        with page.expect_request("**/stream") as request:
            page.get_by_label("English").fill("A dog.")
        assert request.value.post_data_json["model"] == trained_run.name
        with page.expect_request("**/stream") as request:
            page.get_by_role("region", name="Translation").get_by_label("Model").select_option(f"{trained_run.name}-2")
        assert request.value.post_data_json["model"] == f"{trained_run.name}-2"
        expect(page.locator("#target")).to_have_text(ask(address, text="A dog.")["text"])


def test_a_service_that_is_gone_is_told(open_page, started, trained_run):
    with started(trained_run) as (address, process):
        page = open_page(address, "ERR_CONNECTION_REFUSED")
        type_text(page, "A dog.")
        process.kill()
        process.wait()
        page.get_by_label("English").fill("Two men.")
        expect(page.locator("#translation-notice")).to_contain_text("The service does not answer")
