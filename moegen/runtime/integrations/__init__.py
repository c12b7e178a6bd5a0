"""Adapters for libraries that host the layer; each is imported by name and needs its library installed."""
