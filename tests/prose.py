"""Lint the prose of the pages and of the package's docstrings: `make check`."""

import sys
from collections.abc import Iterator

from proselint.checks import __register__  # pyright: ignore[reportMissingTypeStubs]
from proselint.config import DEFAULT, Config  # pyright: ignore[reportMissingTypeStubs]
from proselint.registry import CheckRegistry  # pyright: ignore[reportMissingTypeStubs]
from proselint.tools import LintFile  # pyright: ignore[reportMissingTypeStubs]

from tests.test_language import PACKAGE, PAGES, ROOT, docstrings, text_of

OFF = {
    "typography": "code and console output are in ASCII",
    "lexical_illusions": "a heading may repeat the words before it",
    "misc.capitalization": "names of fields are in lower case",
    "skunked_terms": "`data` has its usual sense",
}
"""The checks that do not fit this project, with the reason."""


def texts() -> Iterator[tuple[str, str]]:
    """Yield each text, with its name."""
    for page in PAGES:
        yield page, text_of(page)
    for path in PACKAGE:
        texts = [each.text for each in docstrings(path)]
        yield str(path.relative_to(ROOT)), "\n\n".join(texts)


def main() -> int:
    CheckRegistry().register_many(__register__)
    checks = DEFAULT["checks"] | dict.fromkeys(OFF, False)
    config: Config = {
        "max_errors": 1000,
        "checks": dict(sorted(checks.items(), key=lambda each: -each[0].count("."))),
    }
    found = [
        f"{name}: {result.check_result.check_path}: {result.check_result.message}"
        for name, text in texts()
        for result in LintFile(name, text).lint(config)
    ]
    sys.stdout.writelines(f"{each}\n" for each in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
