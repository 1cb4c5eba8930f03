"""What the site has beside the pages of ``docs/``: the Python reference, and pages of the root.

MkDocs calls the functions that begin with ``on_``. Nothing is imported from the library, so the
site can be built where torch is not installed.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "clove_ssl"
OF_THE_ROOT = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Pages outside docs/, and what they are called on the site."""
_LINK = re.compile(r"\]\((?P<path>[^)#\s]+)(?P<rest>[^)]*)\)")
_ROLE = re.compile(r":(class|func|meth):(?=<code>)")  # docstrings have them, readers need none


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made here."""
    files.append(File.generated(config, "api.md", content=reference_page()))
    for source, page in OF_THE_ROOT.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_relinked(text, "")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Let links to pages of the root lead to where those are on the site."""
    folder = page.file.src_uri.rpartition("/")[0]
    return _relinked(markdown, folder)


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Mark the page of all options, whose tables a phone shows otherwise; drop roles of Sphinx."""
    if page.file.src_uri == "config.md":
        return f'<div class="options">{html}</div>'
    return _ROLE.sub("", html)


def reference_page() -> str:
    """One entry for every public name of the library, from its docstring."""
    parts = [
        "# Python reference\n",
        "Everything here is imported from `clove_ssl`; other modules may change from one version "
        "to the next.\n",
    ]
    for title, names in _public_names().items():
        parts.append(f"## {title}\n")
        parts += [f"::: {name}\n" for name in names]
    return "\n".join(parts)


def _public_names() -> dict[str, list[str]]:
    """Public names by what they are, functions first; whole modules give their own names."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    exported = _assigned(tree, "__all__")
    homes = _assigned(tree, "_HOMES")
    functions = [f"{homes[name]}.{name}" for name in exported if name in homes and name.islower()]
    classes = [f"{homes[name]}.{name}" for name in exported if name in homes and not name.islower()]
    modules = [name for name in exported if name not in homes]
    return {
        "Functions": functions,
        "Classes": classes,
        **{f"clove_ssl.{name}": [f"clove_ssl.{name}"] for name in modules},
    }


def _assigned(tree: ast.Module, name: str) -> Any:
    """The literal that a module assigns to a name."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            targets = [each.id for each in statement.targets if isinstance(each, ast.Name)]
            if name in targets:
                return ast.literal_eval(statement.value)
    raise LookupError(f"{PACKAGE}/__init__.py assigns no {name}")


def _relinked(markdown: str, folder: str) -> str:
    """The text with its links to files outside docs/ turned round, or into plain text."""
    up = "../" * (folder.count("/") + 1) if folder else ""

    def turned(found: re.Match[str]) -> str:
        path, rest = found["path"], found["rest"]
        plain = path.removeprefix("../" * (path.count("../")))
        if plain in OF_THE_ROOT:
            return f"]({up}{OF_THE_ROOT[plain]}{rest})"
        if path.startswith("docs/"):
            return f"]({path.removeprefix('docs/')}{rest})"
        return found[0]

    return _LINK.sub(turned, markdown)
