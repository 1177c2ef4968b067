"""Four questions asked of every run, answered from stored rows: can its numbers be believed?  No torch."""
