"""One self-contained HTML page from stored runs.  Knows tidy rows and figures, not torch and not the store."""
