"""Programmatic dependent launches: a grid may start while the one before it still runs.

Every kernel of a layer lets its successor start at once, and touches no memory that another kernel reads or writes
before all writes of its predecessor are visible. Completion is transitive: each kernel waits before it completes.
"""

import cutlass.cute as cute


def release():
    """Lets the dependent grid start as soon as all CTAs of this one have come here."""
    cute.arch.griddepcontrol_launch_dependents()


def wait():
    """Waits until the grid that this one depends on has completed."""
    cute.arch.griddepcontrol_wait()


def enter():
    """Both: for kernels that have nothing to do before."""
    release()
    wait()
