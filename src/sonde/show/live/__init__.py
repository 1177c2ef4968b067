"""The report's page while runs are trained or watched: served to this machine, and sent what changed."""
