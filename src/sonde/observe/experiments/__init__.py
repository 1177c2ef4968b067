"""Short experiments on copies of a model, for what recorded rows cannot show.  The model itself is not changed."""
