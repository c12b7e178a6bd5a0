"""Serving: a generated package and a checkpoint become a layer; this package can start neither compiler nor tuner."""
