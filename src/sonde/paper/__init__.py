"""The paper layout: the JSON files that existing scripts read and write."""
