"""Writes the pages of docs/ into a folder as the site shows them: python prepare.py OUT

README.md becomes the first page. A link to a file that is no page leads to the repository;
one to a file or a heading that is not there is an error (the builder of the site sees the
links between pages, this program all others).
"""

import os
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = "https://github.com/tandem-gateway/tandem"

# [text](target) and ![text](target); what stands in code is taken as well, and has no such links.
LINK = re.compile(r"(\]\()([^)\s]+)(\))")


def main(out):
    docs = ROOT / "docs"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(docs, out)
    wrong = []
    nav = (Path(__file__).parent / "zensical.toml").read_text(encoding="utf-8")
    for page in sorted(docs.rglob("*.md")):
        if f'"{page.relative_to(docs)}"' not in nav:
            wrong.append(f"{page.relative_to(ROOT)}: not in the nav of .ci/site/zensical.toml")
        write(page, page, out / page.relative_to(docs), wrong)
    write(ROOT / "README.md", docs / "index.md", out / "index.md", wrong)
    if wrong:
        sys.exit("\n".join(wrong))


def write(page, place, copy, wrong):
    """Writes page to copy with links as they must be where the site has it, which is place in docs/.

    Links that lead nowhere are added to wrong.
    """

    def leads(match):
        path, hash_, anchor = match[2].partition("#")
        if "://" in path or path.startswith("mailto:") or not path:
            return match[0]
        target = (page.parent / path).resolve()
        if not target.exists():
            wrong.append(f"{page.relative_to(ROOT)}: {match[2]}: no such file")
            return match[0]
        if target.is_relative_to(ROOT / "docs") and not target.is_dir():
            return match[1] + os.path.relpath(target, place.parent) + hash_ + anchor + match[3]
        if anchor and anchor not in anchors(target):
            wrong.append(f"{page.relative_to(ROOT)}: {match[2]}: no such heading")
        kind = "tree" if target.is_dir() else "blob"
        return f"{match[1]}{REPOSITORY}/{kind}/main/{target.relative_to(ROOT)}{hash_}{anchor}{match[3]}"

    copy.write_text(LINK.sub(leads, page.read_text(encoding="utf-8")), encoding="utf-8")


def anchors(file):
    """The anchors of a Markdown file's headings, as the repository's own pages name them."""
    headings = re.findall(r"^#+ (.*?)\s*$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


main(Path(sys.argv[1]))
