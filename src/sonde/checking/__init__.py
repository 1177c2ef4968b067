"""A look at a model before it is trained."""
