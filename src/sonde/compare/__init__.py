"""Comparisons of stored runs that differ in one factor, and how they are shown."""

from sonde.compare.comparison import Comparison, Difference, Group, agreeing, as_option, compare

__all__ = ["Comparison", "Difference", "Group", "agreeing", "as_option", "compare"]
