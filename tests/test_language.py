"""Check that pages, texts and docstrings keep the language rules of CONTRIBUTING.md."""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (
        *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
        *(ROOT / "docs").glob("**/*.md"),
    )
    if "generated" not in path.parts
)
LONGEST_MEDIAN = 18  # words in a sentence

BANNED = {
    "a named actor": r"somebody|someone|nobody|whoever|anybody|everybody|the others"
    r"|the other(?= (is|are|was|has|does|waits|runs)\b)",
    "the field's word": r"told|tells?|in hand|anew|by and by|mend(s|ed|ing)?|for ever|on the dot"
    r"|meanwhile|anyhow|beside|(go|goes|going|gone|went) on|stands? still|(takes?|taken|took) back"
    r"|gives? back|given back|(is|are|was|were) to\b(?= [a-z]+)|has to be said|ours|theirs",
    "a noun for `what`": r"(of|for|from|with|by|than|on|after|before|about|into|under) what"
    r"|what (was|were|waits?|comes?|came|stands|failed|fails|ran|runs|must|may|cannot)",
}
OPENINGS = {
    "a named thing for `It`": r"It\b",
    "a noun for `What`": r"(What|Whatever|Who|Whoever|Those)\b(?!.*\?$)",
}
ALLOWED: dict[tuple[str, str], str] = {}
"""Exceptions: a page and a phrase, with the reason."""

HIDDEN = re.compile(r"<!--.*?-->|^(`{3,}|:{3,}).*?^\1\s*$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`[^`]+`")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
END = re.compile(r"(?<=[.!?])[)*\"”]*\s+(?=[^a-z])")


def text_of(page: str) -> str:
    """Return the prose of a page: no code, no comments, links by their text."""
    text = HIDDEN.sub("", (ROOT / page).read_text(encoding="utf-8"))
    return LINK.sub(r"\1", CODE.sub("Code", text))


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of paragraphs and list items; no tables, no headings."""
    for part in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        if part.lstrip().startswith(("|", "#", "!")):
            continue
        plain = re.sub(r"^\s*(?:[-*]|\d+\.) ", "", part).replace("*", "")
        for sentence in END.split(" ".join(plain.split())):
            if re.search(r"\w", sentence):
                yield sentence


def length_of(sentence: str) -> int:
    return len(re.findall(r"[\w'’-]+(?:[./]\w+)*", sentence))


def found(page: str) -> list[str]:
    """Return the phrases of a page that the rules ban, with the rule."""
    text = text_of(page)
    hits = [
        (match[0], rule)
        for rule, pattern in BANNED.items()
        for match in re.finditer(rf"\b(?:{pattern})\b", text, re.IGNORECASE)
    ]
    for sentence in sentences(text):
        hits += [
            (" ".join(sentence.split()[:4]), rule)
            for rule, pattern in OPENINGS.items()
            if re.match(pattern, sentence)
        ]
    return [f"{phrase!r}: write {rule}" for phrase, rule in hits if (page, phrase) not in ALLOWED]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_uses_plain_words(page: str) -> None:
    assert found(page) == []


@pytest.mark.parametrize("page", PAGES)
def test_the_sentences_of_a_page_are_short(page: str) -> None:
    lengths = [length_of(sentence) for sentence in sentences(text_of(page))]
    assert not lengths or median(lengths) <= LONGEST_MEDIAN


def test_each_exception_is_needed() -> None:
    for page, phrase in ALLOWED:
        assert phrase in text_of(page)


# The package: docstrings, errors, help, log lines and templates

PACKAGE = sorted((ROOT / "scheduler").glob("**/*.py"))
TEMPLATES = sorted((ROOT / "scheduler").glob("**/*.html"))
BANNED_IN_CODE = re.compile(
    r"\b(somebody|someone|nobody|whoever|anybody|everybody|told|in hand|anew|by and by|mend(s|ed)?"
    r"|for ever|on the dot|meanwhile|anyhow|beside|go(es)? on|going on|gone on|stands? still"
    r"|(takes?|taken|took) back|gives? back|given back|has to be said)\b",
    re.IGNORECASE,
)
NOT_PROSE = re.compile(r"`[^`]*`|^ *\w+(, \w+)*:(?= )|^=[= ]+$|\{[^{}]*\}|<[^<>]*>", re.MULTILINE)
NO_VERB = re.compile(
    r"(What|Whatever|Whether|Who|Whom|Whose|Which|Where|When|Why|How|Have|Has|The|A|An|All|Each|Every"
    r"|Those|These|That|This|Some\w*|No|Nobody|Nothing|One|It|Its|There|So|For|From|As|With|Inside"
    r"|Until|Once|Always|Never)\b|\w+(s|ing|ed):? (?!of\b)",
)
NO_ACTOR = re.compile(r"test_(what|whatever|who|whom|whose|whoever|of|where|whether|how)_")
STATEMENTS = {"SchedulerError", "NamedOutcome", "Event", "Exception"}
"""Classes whose docstrings are sentences: the default message of an error, the text of an event."""
RULE = re.compile(r"^(P0|C|R1|R3p?|R4|S1b?|S2)(, \w+)*: ")  # of `scheduler.protocol.epochs`
VERBS = re.compile(r"(Pass|Process|Compress|Decompress|Feed|Seed) ")
QUESTION = re.compile(r"(What|Whatever|Whether|Who\w*|Which|Where|When|Why|How|The same)\b")


class Docstring(NamedTuple):
    name: str
    bases: frozenset[str]
    text: str


@cache
def docstrings(path: Path) -> list[Docstring]:
    """Return the docstrings of a module, of its classes and of its functions."""
    found = list[Docstring]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            bases = node.bases if isinstance(node, ast.ClassDef) else []
            names = frozenset(ast.unparse(base).rpartition(".")[2] for base in bases)
            if text := ast.get_docstring(node):
                found.append(Docstring(getattr(node, "name", path.stem), names, text))
    return found


def strings(path: Path) -> Iterator[str]:
    """Yield the texts of a module: docstrings, errors, help and log lines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.value


def statements() -> set[str]:
    """Return the names of all classes that derive from `STATEMENTS`."""
    found, before = set(STATEMENTS), set[str]()
    while found != before:
        before = set(found)
        found |= {
            each.name
            for path in PACKAGE
            for each in docstrings(path)
            if each.bases & found or any(base.endswith("Error") for base in each.bases)
        }
    return found


@pytest.mark.parametrize(
    "path", [*PACKAGE, *TEMPLATES], ids=lambda each: str(each.relative_to(ROOT))
)
def test_texts_of_the_package_use_plain_words(path: Path) -> None:
    texts = strings(path) if path.suffix == ".py" else [path.read_text(encoding="utf-8")]
    assert [
        hit[0] for text in texts for hit in BANNED_IN_CODE.finditer(NOT_PROSE.sub("", text))
    ] == []


def test_docstrings_begin_with_a_verb_and_its_object() -> None:
    exempt = statements()
    wrong = [
        f"{path.relative_to(ROOT)}: {each.name}: {first}"
        for path in PACKAGE
        for each in docstrings(path)
        if each.name not in exempt
        and (first := RULE.sub("", each.text.splitlines()[0]))
        and (NO_VERB.match(first) or not first[0].isupper())
        and not VERBS.match(first)
    ]
    assert wrong == []


def test_no_docstring_begins_like_a_question() -> None:
    """Those of constants and fields, too: they begin with a noun."""
    assert [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.value.value}"
        for path in PACKAGE
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and QUESTION.match(str(node.value.value))
    ] == []


def test_tests_are_named_in_plain_words() -> None:
    names = {
        name
        for folder in ("tests", "examples")
        for path in (ROOT / folder).glob("**/test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))
    }
    assert [
        name
        for name in sorted(names)
        if NO_ACTOR.match(name) or BANNED_IN_CODE.search(name.replace("_", " "))
    ] == []


def test_subjects_of_commits_are_short() -> None:
    git = ["git", "-C", str(ROOT), "log", "-50", "--no-merges", "--format=%s"]
    log = subprocess.run(git, capture_output=True, text=True, check=False)  # none in an archive
    assert [
        subject
        for subject in log.stdout.splitlines()
        if len(subject) > 60 or not subject[0].isupper() or subject.endswith(".")
    ] == []
