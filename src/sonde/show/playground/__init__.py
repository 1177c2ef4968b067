"""A network that trains inside one HTML page: an engine in plain JavaScript, and the page around it."""
