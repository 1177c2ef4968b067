"""Engines: given configurations, bring every run to its end and report each outcome."""
