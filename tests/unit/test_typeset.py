"""Texts as HTML: code and formulas are marked up, every word stays, and nothing else becomes a formula."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from sonde.analysis.explanations import EXPLANATIONS, documented
from sonde.core.html_parts import typeset, with_code
from sonde.plugins import BUILT_IN

TEXTS = [
    text
    for one in (*EXPLANATIONS, *(text for kind in ("rule", "probe") for text in documented(kind, BUILT_IN[kind])))
    for text in (one.short, one.measured)
]
SIGNS = str.maketrans({"²": "2", "³": "3", "ᵀ": "T", "₂": "2", "₁": "1", "⁻": "−", "¹": "1"})


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<p>{typeset(text)}</p>")


def formulas(text: str) -> list[str]:
    return ["".join(math.itertext()) for math in parsed(text).iter("math")]


def letters(text: str) -> str:
    return re.sub(r"[ `_{}]", "", text).translate(SIGNS)


def test_every_text_of_the_glossary_keeps_its_words_and_loses_its_backticks() -> None:
    found = 0
    for text in TEXTS:
        made = parsed(text)
        assert "`" not in typeset(text)
        assert letters("".join(made.itertext())) == letters(text)
        found += len(list(made.iter("math")))
    assert found > 100


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Norm ‖h_L‖² of the state.", ["‖hL‖2"]),
        ("a_l = e B_lᵀ, as in the paper", ["al=eBlT"]),
        ("a vector for a layer, and a (small) one", []),
        ("test_acc and `h_l` of arXiv:1609.01596 in 2 of 3 seeds (n = 2)", ["(n=2)"]),
        ("⟨f_l, a_{l+1}⟩ or so", ["⟨fl,al+1⟩"]),
        ("an open (h_l and no end", ["hl"]),
        ("layer L//2, hidden_norm[l+1]", []),
    ],
)
def test_formulas_are_found_and_words_are_not(text: str, expected: list[str]) -> None:
    assert formulas(text) == expected


def test_indices_and_powers_are_elements_of_their_own() -> None:
    (math,) = parsed("‖h_{l+1}‖²").iter("math")
    assert [len(one) for one in math.iter("msub")] == [2]
    (power,) = math.iter("msup")
    assert power[1].text == "2"
    assert [one.text for one in math.iter("mi")] == ["h", "l"]


def test_markup_in_a_text_stays_text() -> None:
    nasty = "<b>h_l</b> `<script>` a < b & c"
    assert "<b>" not in typeset(nasty)
    assert "<script>" not in typeset(nasty)
    assert with_code(nasty) == "&lt;b&gt;h_l&lt;/b&gt; <code>&lt;script&gt;</code> a &lt; b &amp; c"
