"""Links between the documents lead to files, and to headings in them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")]


@cache
def text(document: Path) -> str:
    """Without code, in which brackets are no links."""
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)


@cache
def anchors(document: Path) -> set[str]:
    """Of the headings, by GitHub's rule."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_links_resolve(document: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text(document)):
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if re.match(r"https?://", link):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_the_readme_leads_to_every_page() -> None:
    linked = set(re.findall(r"\]\(((?:docs/)?[\w-]+\.md)\b", text(ROOT / "README.md")))
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    assert linked == {str(page.relative_to(ROOT)) for page in pages} - {"README.md"}
