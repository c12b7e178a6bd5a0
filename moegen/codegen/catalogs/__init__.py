"""One module per target: which schedules it has, their legality, their modelled time."""
