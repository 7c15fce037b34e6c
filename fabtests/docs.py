#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Documents of the tree.

docs.py check        links resolve, and the index of names is complete and current
docs.py index        writes the index of names, docs/user/index-of-names.md, and the plot of the
                     figures in docs/user/performance.md
docs.py stage DIR    writes the input of mdBook: documents at their places in the tree
docs.py built DIR    links of the pages that mdBook built resolve
"""
import html.parser
import os
import pathlib
import re
import shutil
import sys

# The tree keeps no compiled modules.
sys.dont_write_bytecode = True
import plot  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
USER = ROOT / "docs/user"
INDEX = USER / "index-of-names.md"
PLOT = USER / "messages.svg"
NOT_DOCUMENTS = {".git", ".github", "build", "target", "autom4te.cache"}
LINK = re.compile(r"\]\(([^)\s]+)\)")


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def documents():
    """Paths of all Markdown files, relative to the root, in order."""
    found = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in NOT_DOCUMENTS]
        found += [pathlib.Path(folder, name) for name in files if name.endswith(".md")]
    return sorted(path.relative_to(ROOT) for path in found)


def prose(text):
    """The text without blocks of code."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)


def anchors(path):
    """Names of the headings of a document, as forges and mdBook derive them."""
    headings = re.findall(r"^#+ +(.*)$", prose(path.read_text(encoding="utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


def broken_links():
    """Number of relative links, and a line for each that leads nowhere."""
    count, broken = 0, []
    for name in documents():
        for link in LINK.findall(prose(read(name))):
            if re.match(r"[a-z]+:", link):
                continue
            count += 1
            place, _, anchor = link.partition("#")
            target = (ROOT / name).parent / place if place else ROOT / name
            if not target.exists():
                broken.append(f"{name}: {link}: no such file")
            elif anchor and target.suffix == ".md" and anchor not in anchors(target):
                broken.append(f"{name}: {link}: no such heading")
    return count, broken


def settings():
    """Settings of the tables of docs/env.md; each names one or more in its first cell."""
    cells = re.findall(r"^\| (`[A-Z].*?) \|", read("docs/env.md"), re.M)
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


def counters():
    """Counters of the line of FI_SCIF_STATS, from the code that prints it."""
    code = read("prov/src/engine/types/stats.rs")
    line = code[code.index("pub(crate) fn line") : code.index("mod tests")]
    text = re.search(r'"scif: endpoint.*?"', line, re.S).group()
    return re.findall(r'p\("(\w+)"', line) + re.findall(r"\b(\w+) \{\}", text)[1:]


def verbs():
    """Verbs of scifctl, from its command line; what it runs by itself is hidden."""
    code = read("scifctl/src/args.rs")
    body = re.search(r"enum Command \{\n(.*?)^\}", code, re.S | re.M).group(1)
    names = re.findall(r"^    ([A-Z]\w*)\s*[({,]", body, re.M)
    return [name.lower() for name in names if name != "Probe"]


def exported(name):
    """Functions of a version script; its other symbols are data."""
    return re.findall(r"^\s+((?:scif_|SCI|DIS|GetSci|SetSci)\w+);$", read(name), re.M)


def registered():
    """Functions that kofi.h adds to those of libfabric."""
    return sorted(set(re.findall(r"\b(kofi_\w+)\(", read("libkofi/include/kofi.h"))))


def groups():
    """Kinds of names: title, page of their description, names."""
    return [
        ("Settings", "../env.md", settings()),
        ("Counters of `FI_SCIF_STATS`", "../env.md#the-line-of-fi_scif_stats", counters()),
        ("Verbs of `scifctl`", "../../man/scifctl.1", verbs()),
        ("Functions of `scif.h`", "../../libscif/include/scif.h", exported("libscif/scif.map")),
        ("Functions of SISCI", "../../libsisci/README.md#functions",
         exported("libsisci/sisci.map")),
        ("Functions of `kofi.h`", "../../libkofi/include/kofi.h", registered()),
    ]


def described(page, name):
    """Whether the page of a name has it as a word."""
    text = (USER / page.partition("#")[0]).read_text(encoding="utf-8")
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


def index():
    """Text of the index of names."""
    lines = [
        "# Index of names",
        "",
        "This page answers: where is a name described? Each list begins with a link to the page.",
        "",
        "`fabtests/docs.py index` writes this page; `make check GATES=rules` compares it.",
    ]
    for title, page, names in groups():
        lines += ["", f"## {title}", "", f"[Description]({page}):", ""]
        lines += [f"* `{name}`" for name in sorted(set(names), key=str.lower)]
    return "\n".join(lines) + "\n"


def picture():
    """Plot of the first table of the page on performance."""
    return plot.drawing(*plot.read_page(read("docs/user/performance.md")))


def subjects():
    """Number of pages for users, and a line for each whose first paragraph states no question."""
    count, faults = 0, []
    for path in sorted(USER.glob("*.md")):
        if path.name == "SUMMARY.md":
            continue
        count += 1
        title, _, text = path.read_text(encoding="utf-8").partition("\n\n")
        paragraph = text.partition("\n\n")[0]
        if not (title.startswith("# ") and paragraph.startswith("This page answers: ")
                and "?" in paragraph):
            faults.append(f"{path.name}: the first paragraph states no question")
        if f"]({path.name})" not in read("docs/user/SUMMARY.md"):
            faults.append(f"{path.name}: not in SUMMARY.md")
    return count, faults


def check():
    total, faults = broken_links()
    pages, without = subjects()
    faults += without
    total += pages
    for title, page, names in groups():
        if not names:
            faults.append(f"{title}: none found in the sources")
        faults += [f"{title}: {n} is not in {page}" for n in names if not described(page, n)]
        total += len(names)
    total += 1
    if not INDEX.exists() or INDEX.read_text(encoding="utf-8") != index():
        faults.append("docs/user/index-of-names.md is not current: run fabtests/docs.py index")
    total += 1
    if not PLOT.exists() or PLOT.read_text(encoding="utf-8") != picture():
        faults.append("docs/user/messages.svg does not show the figures of performance.md: "
                      "run fabtests/docs.py index")
    return report(total, faults)


def report(total, faults):
    for fault in faults:
        print("FAIL", fault)
    print(f"{total - len(faults)} passed, {len(faults)} failed")
    return bool(faults) or total == 0


def stage(target):
    """Input of mdBook: its links resolve because each file keeps its place in the tree."""
    source = pathlib.Path(target) / "src"
    shutil.rmtree(target, ignore_errors=True)
    names = set(documents())
    for name in documents():
        for link in LINK.findall(prose(read(name))):
            path = (ROOT / name).parent / link.partition("#")[0]
            if not re.match(r"[a-z]+:", link) and path.is_file():
                names.add(path.resolve().relative_to(ROOT))
    for name in names:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    summary = read("docs/user/SUMMARY.md")
    listed = {pathlib.Path(os.path.normpath("docs/user/" + link)) for link in LINK.findall(summary)}

    def moved(found):
        return "](" + os.path.normpath("docs/user/" + found.group(1)) + ")"

    more = [name for name in documents()
            if name not in listed and name.name != "SUMMARY.md"]
    lines = [LINK.sub(moved, summary), "# For developers", ""]
    for name in more:
        title = read(name).splitlines()[0].lstrip("# ").replace("[", "").replace("]", "")
        lines.append(f"- [{title}]({name})")
    (source / "docs/user/SUMMARY.md").unlink()
    (source / "SUMMARY.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (pathlib.Path(target) / "book.toml").write_text(
        '[book]\ntitle = "scif"\nlanguage = "en"\nsrc = "src"\n\n'
        '[build]\nbuild-dir = "book"\ncreate-missing = false\n'
        # The default ones rename README.md, but not in links to it.
        'use-default-preprocessors = false\n', encoding="utf-8")
    print(f"{len(names)} files staged in {target}")


class Page(html.parser.HTMLParser):
    """Links of the text of a page that mdBook built, and its anchors."""

    def __init__(self):
        super().__init__()
        self.links, self.names, self.inside = [], set(), 0

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if "id" in attrs:
            self.names.add(attrs["id"])
        if tag == "main":
            self.inside += 1
        if tag == "a" and self.inside and attrs.get("class") != "header":
            self.links.append(attrs.get("href", ""))

    def handle_endtag(self, tag):
        if tag == "main":
            self.inside -= 1


def page_of(path, cache={}):
    if path not in cache:
        cache[path] = Page()
        cache[path].feed(path.read_text(encoding="utf-8"))
    return cache[path]


def built(target):
    book = pathlib.Path(target) / "book"
    total, faults = 0, []
    for path in sorted(book.rglob("*.html")):
        if path.name in ("print.html", "404.html", "toc.html"):
            continue
        for link in page_of(path).links:
            if not link or re.match(r"[a-z]+:", link):
                continue
            total += 1
            place, _, anchor = link.partition("#")
            goal = (path.parent / place) if place else path
            if not goal.exists():
                # Folders of examples and sources are in the tree only.
                if not (ROOT / os.path.normpath(path.parent.relative_to(book) / place)).is_dir():
                    faults.append(f"{path.relative_to(book)}: {link}: no such file")
            elif anchor and goal.suffix == ".html" and anchor not in page_of(goal).names:
                faults.append(f"{path.relative_to(book)}: {link}: no such heading")
    return report(total, faults)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["check"]:
            sys.exit(check())
        case ["index"]:
            INDEX.write_text(index(), encoding="utf-8")
            PLOT.write_text(picture(), encoding="utf-8")
        case ["stage", place]:
            stage(place)
        case ["built", place]:
            sys.exit(built(place))
        case _:
            sys.exit(__doc__)
