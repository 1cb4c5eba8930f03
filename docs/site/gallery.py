"""Write ``docs/gallery.md``: the pictures of a run, and of its report in a browser.

Run: ``python docs/site/gallery.py WORK`` after ``tutorial.py WORK``, whose pre-training it shows;
it takes a minute or two.
The images are scenes that clove-ssl draws itself, so the pictures may be published. The report is
looked at with Chromium, driven by Playwright.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

DOCS = Path(__file__).parents[1]
PAGE, PICTURES = DOCS / "gallery.md", DOCS / "images" / "gallery"
RUN = "runs/backbone"
SHEETS = {
    "features": "Places that look alike to the network have the same colour, before training "
    "and after it. Good features follow the objects in the picture.",
    "similarity": "Bright places look to the network like the place in the ring. "
    "In the other images the ring marks the most similar place.",
    "matches": "What the network is trained on: two crops of an image, and the places "
    "that both of them show.",
    "attention": "Which places the cell in the ring attends to, for each head.",
    "views": "What the network sees of an image: crops that may be mirrored, grey, blurred, "
    "or have other colours.",
}
SCREENS = {
    "report": (1200, 1150, "light"),
    "report-dark": (1200, 1150, "dark"),
    "report-phone": (390, 1150, "light"),
}
"""Width, height and colours of the report's pictures."""


def main(work: Path) -> None:
    """Make all pictures and the page."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    draw_all = [sys.executable, "-m", "clove_ssl", "report", RUN]  # some are drawn when asked for
    subprocess.run(draw_all, cwd=work, check=True)
    for kind in SHEETS:
        with Image.open(work / RUN / "pictures" / f"{kind}.png") as sheet:
            sheet.convert("RGB").save(PICTURES / f"{kind}.webp", quality=85)
    _look_at_report(work / RUN / "report.html")
    PAGE.write_text(_page(), encoding="utf-8")


def _look_at_report(report: Path) -> None:
    browser_path = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for name, (width, height, colours) in SCREENS.items():
            picture = _screen(browser, report, width, height, colours)
            picture.save(PICTURES / f"{name}.webp", quality=85)
        browser.close()


def _screen(browser: Browser, page: Path, width: int, height: int, colours: str) -> Image.Image:
    view = browser.new_page(
        viewport={"width": width, "height": height},
        color_scheme="dark" if colours == "dark" else "light",
    )
    view.goto(page.as_uri())
    picture = Image.open(io.BytesIO(view.screenshot())).convert("RGB")
    view.close()
    return picture


def _page() -> str:
    parts = [
        "<!-- Written by docs/site/gallery.py; change that, not this. -->",
        "# Gallery",
        "",
        "These pictures show what a run of some minutes on a CPU has learned, on images that "
        "clove-ssl draws itself. [The tutorial](tutorial.md) has the command; "
        "[What does it see?](pictures.md) explains every picture and how to make it from your own "
        "photos.",
        "",
    ]
    for kind, text in SHEETS.items():
        parts += [
            f"## {kind.capitalize()}",
            "",
            text,
            "",
            f"![{kind}](images/gallery/{kind}.webp)",
            "",
        ]
    parts += [
        "## The report",
        "",
        "Every run writes one page, which also fits dark mode and phones.",
        "",
    ]
    for name, (width, _, colours) in SCREENS.items():
        parts += [f"![The report, {width} pixels wide, {colours}](images/gallery/{name}.webp)", ""]
    return "\n".join(parts)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
