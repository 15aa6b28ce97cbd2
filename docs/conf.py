"""How Sphinx makes the site: `make docs`. Warnings are errors, broken links among them."""

import sys
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from docs import facts, pictures  # noqa: E402

with (HERE.parent / "pyproject.toml").open("rb") as file:
    _project = tomllib.load(file)["project"]

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


def write_generated(_: Sphinx) -> None:
    """Before anything is read: what is told of the code is written from the code."""
    generated = HERE / "generated"
    generated.mkdir(exist_ok=True)
    for name, text in {**facts.pages(), **pictures.drawn()}.items():
        (generated / name).write_text(text, encoding="utf-8")
