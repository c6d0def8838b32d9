"""``mmload browse`` in a real browser: somebody looks, and marks rows by keys and mouse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from browsers import Browser, chromium
from browsing import Page, browsed
from conftest import make_folder, ran
from PIL import Image

from mmload.augment import RandomCrop, RandomHorizontalFlip
from mmload.augment.collate import Collate
from mmload.sources.listed_split import read_entries

pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror=document.title='bad'>"
SHOWN = "[...document.images].filter(i => i.src && i.checkVisibility()).every(i => i.complete && i.naturalWidth)"
ROW, HELP = "document.getElementById('row').open", "document.getElementById('help').open"
FOCUSED = "document.activeElement.dataset.row"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``photos`` of two splits and three classes, one of them full of markup, and ``out``, built of them."""
    place = tmp_path_factory.mktemp("browser")
    photos = make_folder(place / "photos" / "train", 30, ("ant", "bee"))
    make_folder(place / "photos" / "val", 2, ("ant", "bee"), seed=1)
    for split in ("train", "val"):
        (photos.parent / split / HOSTILE).mkdir()
        (photos.parent / split / HOSTILE / f"{HOSTILE}.png").write_bytes((photos / "ant" / "00.png").read_bytes())
    ran("build", "imagefolder", photos.parent, place / "out", "--size", 32)
    return place


@pytest.fixture(scope="module")
def page(place: Path) -> Iterator[Page]:
    options = {"augmentation": "crops", "collate_for": lambda classes: Collate(RandomCrop(24), RandomHorizontalFlip())}
    with browsed(place / "out", place / "out.excluded.txt", source=place / "photos", **options) as served:
        yield served


def opened(browser: Browser, page: Page, part: str = "") -> None:
    browser.driver.get("about:blank")
    browser.look(1200, 900)
    browser.driver.get(page.address + part)
    browser.wait("document.querySelectorAll('.tile').length > 0")
    browser.wait(SHOWN)


def text(browser: Browser, name: str) -> str:
    return str(browser.value(f"document.getElementById('{name}').innerText"))


def test_three_rows_are_marked_by_keys_and_mouse(browser: Browser, page: Page, place: Path) -> None:
    opened(browser, page)
    assert text(browser, "count") == "1 to 48 of 61"
    browser.press("\ue014")  # an arrow: the first row has the focus
    browser.press("\ue014", "\ue015", "\ue013", "m")  # right, down, up
    browser.wait("document.querySelectorAll('.is-marked').length == 1")
    assert browser.value("document.querySelector('.is-marked').dataset.row") == browser.value(FOCUSED) == "1"
    browser.press("\ue014", "\ue007")  # the next one is opened with Enter
    browser.wait(ROW)
    assert text(browser, "row-title").startswith("ant, row 2 of train") or "row 2" in text(browser, "row-title")
    browser.press("2")
    browser.wait("document.querySelector('#reasons [aria-pressed=true]').value == 'broken'")
    browser.press("\ue014", "\ue014")
    browser.wait("document.getElementById('row-title').innerText.includes('row 4')")
    browser.value("document.querySelector('#reasons [value=duplicate]').click()")
    browser.wait("document.querySelector('#reasons [aria-pressed=true]').value == 'duplicate'")
    browser.press("\ue00c")  # Esc
    browser.wait(f"{FOCUSED} == '4'")  # the event that says that the row was closed comes after it is
    assert text(browser, "marks").startswith("3 marked, in ")
    marks = place / "out.excluded.txt"
    assert [entry.reason for entry in read_entries(marks)] == ["wrong label", "broken", "duplicate"]
    browser.value("document.getElementById('marked').click()")
    browser.wait("document.querySelectorAll('.tile').length == 3")
    browser.press("?")
    browser.wait(HELP)
    browser.press("\ue00c")
    browser.wait(f"!{HELP}")
    assert not browser.messages()


def test_browse_goes_to_the_next_row_after_a_mark_if_asked(browser: Browser, page: Page, place: Path) -> None:
    opened(browser, page, "#split=train&row=10")
    browser.wait(ROW)
    browser.value("document.getElementById('go-on').click()")
    browser.press("1")
    browser.wait("document.getElementById('row-title').innerText.includes('row 11')")
    browser.value("document.querySelector('#reasons [value=broken]').click()")
    browser.wait("document.getElementById('row-title').innerText.includes('row 12')")
    browser.press("\ue00c")
    browser.wait(f"{FOCUSED} == '12'")
    browser.press("2")  # in the grid, too
    browser.wait(f"{FOCUSED} == '13'")
    browser.press("g", "3")
    browser.wait("document.querySelector('.tile[data-row=\"13\"].is-marked') !== null")
    assert browser.value(FOCUSED) == "13"
    marked = [entry.reason for entry in read_entries(place / "out.excluded.txt")]
    assert marked[-4:] == ["wrong label", "broken", "broken", "duplicate"]
    assert not browser.messages()
    for row in (10, 11, 12, 13):
        opened(browser, page, f"#split=train&row={row}")
        browser.wait(ROW)
        browser.value("document.querySelector('#reasons [value=\"\"]').click()")
        browser.wait("document.querySelector('#reasons [value=\"\"]').ariaPressed == 'true'")


def test_pages_classes_splits_and_the_address_lead_to_rows(browser: Browser, page: Page) -> None:
    opened(browser, page)
    browser.press("n")
    browser.wait("document.getElementById('count').innerText == '49 to 61 of 61'")
    assert browser.value("document.getElementById('next').disabled")
    assert browser.value(FOCUSED) == "48"
    choose = "(() => {{ const s = {}; s.value = '{}'; s.dispatchEvent(new Event('change')) }})()"
    browser.value(choose.format("document.getElementById('class')", 2))
    browser.wait("document.getElementById('count').innerText == '1 to 30 of 30'")
    browser.value(choose.format("document.getElementById('split')", "val"))
    browser.wait("document.getElementById('count').innerText == '1 to 5 of 5'")
    opened(browser, page, "#split=train&class=1&offset=0&row=7")
    browser.wait(ROW)
    assert "row 7 of train" in text(browser, "row-title")
    opened(browser, page, "#split=none&class=x&offset=-3&row=9999999")
    browser.wait("document.getElementById('problem').innerText.includes('row 9999999 is not in split train')")
    browser.messages()


def test_names_full_of_markup_are_text(browser: Browser, page: Page) -> None:
    opened(browser, page, "#split=train&row=0")
    browser.wait(ROW)
    assert text(browser, "row-title") == f"{HOSTILE}, row 0 of train"
    assert text(browser, "row-file") == f"train/{HOSTILE}/{HOSTILE}.png"
    browser.wait(SHOWN)
    assert browser.value("document.title") == "out, mmload browse"
    assert browser.value("document.querySelectorAll('img[src=x]').length") == 0
    assert not browser.messages()


def test_a_row_shows_its_photograph_and_twenty_draws_at_any_width(browser: Browser, page: Page, tmp_path: Path) -> None:
    opened(browser, page, "#split=train&row=3")
    browser.wait(ROW)
    browser.wait("document.querySelectorAll('#draws img').length == 20")
    controls = "[...document.querySelectorAll('button, select, input')]"
    named = "(e => e.innerText.trim() || e.ariaLabel || (e.labels && e.labels.length))"
    assert browser.value(f"{controls}.every({named})")
    for width, dark in ((1200, False), (1200, True), (390, False)):
        browser.look(width, 850, dark=dark)
        browser.wait(SHOWN)
        for name in ("stored", "source"):
            assert browser.value(f"document.getElementById('{name}').naturalWidth") > 0
        assert browser.value("document.documentElement.scrollWidth <= innerWidth")
        assert browser.value("document.getElementById('row').scrollWidth <= innerWidth")
        background = browser.value("getComputedStyle(document.getElementById('row')).backgroundColor")
        assert (background == "rgb(255, 255, 255)") != dark
        assert browser.driver.save_screenshot(str(tmp_path / "shot.png"))
        assert len(np.unique(np.asarray(Image.open(tmp_path / "shot.png").convert("L")))) > 50
    assert not browser.messages()


def test_a_mark_that_does_not_arrive_is_not_shown(browser: Browser, page: Page) -> None:
    opened(browser, page)
    offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    browser.driver.execute_cdp_cmd("Network.enable", {})
    browser.driver.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    before = browser.value("document.querySelectorAll('.is-marked').length")
    try:
        browser.press("\ue014", "m")
        browser.wait("document.getElementById('problem').innerText.includes('is it still running')")
        assert browser.value("document.querySelectorAll('.is-marked').length") == before
    finally:
        browser.driver.execute_cdp_cmd("Network.emulateNetworkConditions", {**offline, "offline": False})
        browser.messages()
