"""Check a built site: every link, picture and anchor on its pages leads somewhere.

Run: ``python docs/site/check_links.py build/site``. Links to other hosts are counted, not
followed. What MkDocs checks are links of Markdown; here is what a reader's browser gets.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links and the anchors of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors |= {each for name in ("id", "name") if (each := values.get(name))}
        for name in ("href", "src"):
            if values.get(name):
                self.links.append(str(values[name]))


def broken_links(site: Path) -> list[str]:
    """Every link that leads nowhere, with the page it is on."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in _html(site)}
    broken = []
    for path, page in pages.items():
        for link in page.links:
            reason = _fault(link, path, pages, site.resolve())
            if reason:
                broken.append(f"{path.relative_to(site.resolve())}: {link} ({reason})")
    return broken


def _html(site: Path) -> list[Path]:
    # The page of errors is served from anywhere, so its links are not relative to it.
    return [path for path in sorted(site.rglob("*.html")) if path.name != "404.html"]


def _fault(link: str, page: Path, pages: dict[Path, Page], site: Path) -> str:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return ""
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if target.is_dir():
        target = target / "index.html"
    if not target.is_file():
        return "no such file"
    if not target.is_relative_to(site):
        return "outside the site"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].anchors:
        return "no such place on that page"
    return ""


if __name__ == "__main__":
    found = broken_links(Path(sys.argv[1]))
    for line in found:
        print(line, file=sys.stderr)
    sys.exit(f"{len(found)} links lead nowhere" if found else 0)
