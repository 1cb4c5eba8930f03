"""The report in a real Chromium: it works, fits a phone, and can be read in the dark."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from clove_ssl.config import files
from clove_ssl.config.pretraining import DataConfig, PretrainConfig
from clove_ssl.config.showing import WatchConfig
from clove_ssl.report import watch as watching
from clove_ssl.report.page import render_report
from clove_ssl.runs import directory
from clove_ssl.runs.directory import RunDirectory

playwright = pytest.importorskip(
    "playwright.sync_api", reason="needs playwright: pip install playwright"
)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt install chromium")

PHONE, DESKTOP = (390, 844), (1200, 900)
UNFOLD = "document.querySelectorAll('.folded').forEach(each => { each.open = true; })"
LONG = "a-run-with-a-rather-long-name-as-sweeps-make-them-lr0.05-seed1"
Opener = Callable[..., Any]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as running:
        # Chromium's own sandbox does not start for root, as whom containers run tests.
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def line_of(step: int, *, loss: float) -> str:
    figures = {
        "loss": loss,
        "cos_positive": 0.3,
        "cos_negative": 0.2,
        "positives_per_image_global": 122.0,
        "data_wait": 0.25,
        "images_per_second": 900.0 + step,
        "probe_correspondence": 0.3 + step / 1000,
        "epoch": step / 10,
    }
    return json.dumps({"step": step, **figures}) + "\n"


def make_run(path: Path, losses: list[float], **options: Any) -> RunDirectory:
    run = directory.create(path)
    config = PretrainConfig(out=run.path, data=DataConfig(source="photos"), **options)
    files.save(config, run.config)
    lines = [line_of(step, loss=loss) for step, loss in enumerate(losses, start=1)]
    run.metrics.write_text("".join(lines))
    start = {"device": "NVIDIA H200", "time": "2026-01-01T10:00:00+0000", "step": 0, "torch": "2"}
    run.provenance.write_text(json.dumps({"starts": [start]}))
    run.pictures.mkdir()
    Image.effect_noise((1200, 300), 80).convert("RGB").save(run.pictures / "features.png")
    probe = {"backbone": str(path), "data": "VOC", "miou": 0.4, "interval": [0.35, 0.5]}
    run.probes.write_text(json.dumps([probe]))
    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[RunDirectory]:
    folder = tmp_path_factory.mktemp("runs")
    falling = [100 - step / 20 for step in range(1, 61)]
    return [make_run(folder / "short", falling), make_run(folder / LONG, [5.0] * 40, seed=7)]


@pytest.fixture
def open_page(
    chromium: Any, runs: list[RunDirectory], tmp_path: Path
) -> Iterator[Callable[..., Any]]:
    """Open a report; at the end nothing may have been complained about."""
    complaints: list[str] = []
    contexts = []

    def open_it(
        size: tuple[int, int] = DESKTOP,
        *,
        scheme: str = "light",
        address: str | None = None,
        count: int = 2,
    ) -> Any:
        if address is None:
            file = tmp_path / "report.html"
            file.write_text(render_report(runs[:count]), encoding="utf-8")
            address = file.as_uri()
        viewport = {"width": size[0], "height": size[1]}
        context = chromium.new_context(viewport=viewport, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("requestfailed", lambda request: complaints.append(request.url))
        page.goto(address)
        page.evaluate(UNFOLD)
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert complaints == []


def point_at(page: Any, number: int, share: float) -> str:
    """Point at a place of a curve; what the tip then says."""
    curve = page.locator(f'[data-curve="{number}"]')
    curve.scroll_into_view_if_needed()
    box = curve.bounding_box()
    page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
    text: str = page.locator(".tip").inner_text()
    return text


def test_pointing_at_a_curve_shows_the_values_of_all_runs(open_page: Opener) -> None:
    page = open_page()
    first, second = point_at(page, 0, 0.999).splitlines()
    assert first == "short, step 60: 97"
    assert second == f"{LONG}, step 40: 5"
    steps = [int(re.findall(r"step (\d+)", point_at(page, 0, share))[0]) for share in (0.3, 0.6)]
    assert 1 < steps[0] < steps[1] < 60
    page.mouse.move(5, 5)
    assert page.locator(".tip").count() == 0


def test_a_phone_shows_all_of_the_contents(open_page: Opener) -> None:
    links = open_page(PHONE).locator(".contents a")
    ends = [link.bounding_box() for link in links.all()]
    assert len(ends) > 4
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= PHONE[0] for box in ends)


def test_one_run_alone_needs_no_switches_and_no_names(open_page: Opener) -> None:
    page = open_page(count=1)
    assert page.locator("[data-toggle]").count() == 0
    assert point_at(page, 0, 0.999) == "step 60: 97"


def test_shares_are_read_in_percent(open_page: Opener) -> None:
    page = open_page()
    curve = page.locator(".card", has_text="Waiting for data").locator("[data-curve]")
    assert ": 25 %" in point_at(page, int(curve.get_attribute("data-curve")), 0.5)


def test_a_run_that_is_switched_off_disappears_and_the_axis_follows(open_page: Opener) -> None:
    page = open_page()
    curve = page.locator('[data-curve="0"]')
    both = curve.locator(".tick").all_text_contents()
    page.locator('[data-toggle="1"]').uncheck()
    alone = curve.locator(".tick").all_text_contents()
    assert {"40", "80"} <= set(both)
    assert {"98.0", "98.5"} <= set(alone)
    assert not curve.locator('.line[data-run="1"]').first.is_visible()
    assert curve.locator('.line[data-run="0"]').first.is_visible()
    assert page.locator('td[data-run="1"]:visible').count() == 0
    assert LONG not in point_at(page, 0, 0.5)
    page.locator('[data-toggle="1"]').check()
    assert curve.locator(".tick").all_text_contents() == both


def test_the_script_draws_what_the_page_had_drawn(open_page: Opener) -> None:
    page = open_page()
    curves = page.locator(".curve")
    outlines = "all => all.map(each => each.querySelector('.line').getAttribute('d'))"
    labels = "all => all.map(each => each.querySelector('.axes').textContent)"
    before = curves.evaluate_all(outlines), curves.evaluate_all(labels)
    for change in ("uncheck", "check"):
        getattr(page.locator('[data-toggle="0"]'), change)()
    after = curves.evaluate_all(outlines), curves.evaluate_all(labels)
    assert after[1] == before[1]
    for old, new in zip(before[0], after[0], strict=True):
        numbers = [[float(each) for each in re.findall(r"[\d.]+", path)] for path in (old, new)]
        assert numbers[1] == pytest.approx(numbers[0], abs=0.11)


def test_with_all_runs_off_nothing_breaks(open_page: Opener) -> None:
    page = open_page()
    for run in range(2):
        page.locator(f'[data-toggle="{run}"]').uncheck()
    page.locator('[data-curve="0"]').hover()
    assert page.locator(".tip").count() == 0


TOO_WIDE = """() => [...document.querySelectorAll("body *")]
  .filter(each => !each.closest(".scroll, svg, script") && each.getClientRects().length)
  .filter(each => each.getBoundingClientRect().right > innerWidth + 0.5)
  .map(each => each.outerHTML.slice(0, 80))"""


@pytest.mark.parametrize("count", [1, 2])
def test_nothing_is_wider_than_a_phone(open_page: Opener, count: int) -> None:
    page = open_page(PHONE, count=count)
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE[0]
    assert page.evaluate(TOO_WIDE) == []


def test_tips_stay_inside_their_card_on_a_phone(open_page: Opener) -> None:
    page = open_page(PHONE)
    for share in (0.05, 0.5, 0.98):
        point_at(page, 1, share)
        tip = page.locator(".tip").bounding_box()
        assert tip["x"] >= 0
        assert tip["x"] + tip["width"] <= PHONE[0]


CONTRASTS = """() => {
  const bright = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map(each => each / 255)
      .map(each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (each) => {
    for (; each; each = each.parentElement) {
      const colour = getComputedStyle(each).backgroundColor;
      if (!/, 0\\)$/.test(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  return [...document.querySelectorAll("h1, h2, h3, p, td, th, dt, dd, label, .mark, .tick")]
    .map(each => [each.textContent.trim().slice(0, 40), ratio(
      bright(each.matches(".tick") ? getComputedStyle(each).fill : getComputedStyle(each).color),
      bright(behind(each)))]);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(open_page: Opener, scheme: str) -> None:
    page = open_page(scheme=scheme)
    contrasts = page.evaluate(CONTRASTS)
    assert len(contrasts) > 100
    assert [(text, ratio) for text, ratio in contrasts if ratio < 4.5] == []
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    red = int(re.findall(r"\d+", ground)[0])
    assert (red < 60) == (scheme == "dark")


def test_lines_of_runs_differ_in_colour(open_page: Opener) -> None:
    page = open_page(scheme="dark")
    lines = page.locator('[data-curve="0"] .line')
    colours = lines.evaluate_all("all => all.map(each => getComputedStyle(each).stroke)")
    assert len(set(colours)) == 2


def test_a_sheet_fits_a_phone_and_is_enlarged_when_touched(open_page: Opener) -> None:
    page = open_page(PHONE, count=1)
    sheet = page.locator(".sheet").first
    assert sheet.bounding_box()["width"] < PHONE[0]
    sheet.click()
    assert sheet.bounding_box()["width"] == 1200
    page.keyboard.press("Escape")
    assert sheet.bounding_box()["width"] < PHONE[0]


@contextmanager
def served(run: RunDirectory) -> Iterator[str]:
    server = watching.open_server(WatchConfig(runs=(run.path,), port=0))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_live_page_follows_the_run(open_page: Opener, tmp_path: Path) -> None:
    run = make_run(tmp_path / "going", [100.0, 99.0])
    with served(run) as address:
        page = open_page(address=address)
        page.locator("summary", has_text="config.yaml").click()
        with run.metrics.open("a") as metrics:
            metrics.write(line_of(3, loss=98.5))
        page.get_by_text("Live: going interrupted, step 3").wait_for()
        page.locator("dd", has_text="3 of 2,000").wait_for()
        assert point_at(page, 0, 0.999) == "step 3: 98.5"
        assert page.locator("details[open] summary", has_text="config.yaml").count() == 1
        page.close()  # before the server goes, or it would complain of that
