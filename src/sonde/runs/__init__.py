"""Stored runs as readers see them: what each was, what it measured, what may stand together.  No torch."""
