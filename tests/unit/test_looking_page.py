"""What docs/questions.md says of the cost of looking is what was measured."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_says_the_stored_shares_and_the_settings_that_they_are_of() -> None:
    text = (ROOT / "docs" / "questions.md").read_text()
    usual, seldom = json.loads((ROOT / "benchmarks" / "looking.json").read_text())
    shares = usual["shares"]
    passes = sum(share for name, share in shares.items() if name.startswith("snapshot"))
    parts = {
        "for the test set after every epoch": shares["test set"],
        "for ρ at six epochs": shares["rho, costly"],
        "for the float64 pass that all probes of an epoch share": passes,
        "for everything else": shares["all of it"] - shares["test set"] - shares["rho, costly"] - passes,
        "of the same run": seldom["shares"]["all of it"],
    }
    for words, share in parts.items():
        assert f"{100 * share:.1f} % {words}" in text
    assert f"{100 * shares['all of it']:.1f} % (for each part, the least of five rounds)" in text
    assert " ".join(f"--set {word}" for word in seldom["set"]) in text
    assert seldom["shares"]["all of it"] < 0.06
