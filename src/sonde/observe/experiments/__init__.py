"""Cheap tests on a copy of a model, where what was recorded cannot tell.  The model itself is never touched."""
