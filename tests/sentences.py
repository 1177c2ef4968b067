"""Sentences and their words, for the tests that keep texts short: help, findings, explanations, pages of the docs."""

import re
from collections.abc import Iterator

MOST_WORDS = 30

_FENCED = re.compile(r"^(`{3,}|~{3,}).*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->|\A---\n.*?\n---$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(`+)[^`].*?\1|\$\$.*?\$\$|\$[^$\s][^$\n]*\$|\\\(.*?\\\)|\\\[.*?\\\]", re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\](?:\([^)]*\)|\{[^}]*\})")
_MARKUP = re.compile(r"\[/?(?:bold|dim|italic|b|i)\]|</?[a-z][^>]*>|[*_]{1,2}(?=\S)|(?<=\S)[*_]{1,2}(?=\W|$)")
_PARAGRAPH = re.compile(r"\n[ \t]*\n|\n(?=[ \t]*(?:[-*+•]|\d+[.)]|#+|>|\|)[ \t])")
_NOT_PROSE = re.compile(r"[ \t]*(?:\||:?-{3,}|\[\^?[^\]]+\]:)")
_ABBREVIATION = re.compile(r"\b(?:(?:e\.g|i\.e|et al|cf|vs|resp|approx|s\.d|fig|eq)\.)$", re.IGNORECASE)
_WORD = re.compile(r"\w")


def sentences(text: str) -> Iterator[str]:
    """The sentences of plain text or Markdown, without code blocks, tables and comments.

    Inline code and formulas are one word each.  A list item, a heading and a paragraph end a sentence.
    """
    text = _COMMENT.sub("", _FENCED.sub("\n\n", text))
    text = _MARKUP.sub("", _LINK.sub(r"\1", _CODE.sub("code", text)))
    for paragraph in _PARAGRAPH.split(text):
        lines = [line for line in paragraph.splitlines() if not _NOT_PROSE.match(line)]
        start = ""
        for part in re.split(r"(?<=[.!?])[)\"”’]?\s+", " ".join(" ".join(lines).split())):
            start = f"{start} {part}".strip()
            if start and not _ABBREVIATION.search(start):
                yield start
                start = ""
        if start:
            yield start


def words(sentence: str) -> int:
    """How many words a sentence has; signs between words do not count."""
    return sum(bool(_WORD.search(word)) for word in sentence.split())


def long_sentences(text: str, most: int = MOST_WORDS) -> list[str]:
    """The sentences with more words than `most`, each with its number of words first."""
    return [f"{words(one)}: {one}" for one in sentences(text) if words(one) > most]
