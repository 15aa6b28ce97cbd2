"""Configure Sphinx for `make docs`. Warnings are errors, broken links among them."""

import re
import sys
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from docs import facts, pictures  # noqa: E402

with (HERE.parent / "pyproject.toml").open("rb") as file:
    _project = tomllib.load(file)["project"]

INCLUDE = re.compile(r"```\{include\} (\S+)\n((?::.*\n)*)```")
FENCED = re.compile(r"^(`{3,}).*?^\1$", re.DOTALL | re.MULTILINE)
AGENTS = """\
Each page has a Markdown twin: replace `.html` in its address by `.md`.
To find out why a loop did not run, answer [five questions](how-to/diagnose.md)."""

project = "scheduler"
release = version = _project["version"]
copyright = "the authors of scheduler; MIT license"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["generated"]  # those pages are included by others
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
suppress_warnings = ["myst.xref_ambiguous"]

# Docstrings are read in an editor first: there, `name` is code.
default_role = "code"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
napoleon_use_rtype = False
napoleon_use_ivar = True

linkcheck_ignore = [r"https?://(localhost|127\.0\.0\.1)\b"]  # a reader's own machine
linkcheck_retries = 3
linkcheck_timeout = 30

html_theme = "furo"
html_title = f"scheduler {release}"
html_show_sphinx = False
html_copy_source = False
pygments_style = "tango"


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", write_generated)
    app.connect("build-finished", write_markdown)


def write_generated(_: Sphinx) -> None:
    """Write the pages that are made from the code, before any page is read."""
    generated = HERE / "generated"
    generated.mkdir(exist_ok=True)
    for name, text in {**facts.pages(), **pictures.drawn()}.items():
        (generated / name).write_text(text, encoding="utf-8")


def write_markdown(app: Sphinx, error: Exception | None) -> None:
    """Write a Markdown twin of each page, and `llms.txt` with their titles and first sentences."""
    if error is not None or app.builder.name != "html":
        return
    out = Path(app.outdir)
    lines = ["# scheduler", "", f"> {_project['description']}", "", AGENTS, "", "## Pages", ""]
    for path in sorted(HERE.glob("**/*.md")):
        if "generated" in path.parts:
            continue
        name = path.relative_to(HERE)
        text = _with_includes(path)
        (out / name).write_text(text, encoding="utf-8")
        title, _, rest = text.removeprefix("# ").partition("\n")
        prose = FENCED.sub("", rest)
        first = re.search(r"^(?=[A-Z`*]).+?(?=[.:]?\n\n|\.\s)", prose, re.DOTALL | re.MULTILINE)
        says = f"{' '.join(first[0].split())}." if first else ""
        lines.append(f"- [{title}]({name.as_posix()}): {says}")
    (out / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _with_includes(path: Path) -> str:
    def included(found: re.Match[str]) -> str:
        text = (path.parent / found[1]).read_text(encoding="utf-8")
        options = dict(re.findall(r':([a-z-]+): "(.*)"', found[2]))
        if start := options.get("start-after"):
            text = text.partition(start)[2]
        return text.partition(options["end-before"])[0] if "end-before" in options else text

    return INCLUDE.sub(included, path.read_text(encoding="utf-8"))
