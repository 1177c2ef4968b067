"""Callbacks for training loops that other libraries own."""
