"""Values that every other package shares; imports nothing of moegen."""
