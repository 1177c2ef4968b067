"""CITATION.cff is a citation that tools read (Citation File Format 1.2.0) and says what the package says of itself."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

HERE = Path(__file__).parents[2]
KEYS = {
    "abstract", "authors", "cff-version", "commit", "contact", "date-released", "doi", "identifiers", "keywords",
    "license", "license-url", "message", "preferred-citation", "references", "repository", "repository-artifact",
    "repository-code", "title", "type", "url", "version",
}  # fmt: skip
PERSON = {"address", "affiliation", "alias", "city", "country", "email", "family-names", "fax", "given-names"} | {
    "name-particle", "name-suffix", "orcid", "post-code", "region", "tel", "website",
}  # fmt: skip
ENTITY = {"address", "alias", "city", "country", "date-end", "date-start", "email", "fax", "location", "name"} | {
    "orcid", "post-code", "region", "tel", "website",
}  # fmt: skip
"""What the format allows at its top, of a person and of an entity."""


@pytest.fixture(scope="module")
def cited() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((HERE / "CITATION.cff").read_text())
    return found


def test_it_has_the_keys_that_the_format_asks_for_and_none_that_it_does_not_know(
    cited: dict[str, Any],
) -> None:
    assert cited.keys() >= {"cff-version", "message", "title", "authors"}
    assert cited.keys() <= KEYS
    assert cited["cff-version"] == "1.2.0"
    assert cited["type"] in ("software", "dataset")
    for key in ("message", "title", "abstract"):
        assert cited[key].strip()


def test_every_author_is_a_person_or_an_entity(cited: dict[str, Any]) -> None:
    assert cited["authors"]
    for author in cited["authors"]:
        assert author.keys() <= PERSON or ("name" in author and author.keys() <= ENTITY)


def test_keywords_are_different_words(cited: dict[str, Any]) -> None:
    assert len({*cited["keywords"]}) == len(cited["keywords"]) > 0
    assert all(isinstance(word, str) for word in cited["keywords"])


def test_version_and_license_are_the_package_s(cited: dict[str, Any]) -> None:
    package = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    assert str(cited["version"]) == package["version"]
    assert cited["license"] == package["license"]


def test_a_date_is_written_as_the_format_writes_it(cited: dict[str, Any]) -> None:
    released = cited.get("date-released")
    assert released is None or re.fullmatch(r"\d{4}-\d{2}-\d{2}", str(released))
