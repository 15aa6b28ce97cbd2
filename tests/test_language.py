"""Check that the pages a user reads keep the language rules of CONTRIBUTING.md."""

import re
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
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
