"""What every kernel must compute: each op as a function of the layer's buffers, and the layer in plain fp64 or fp32."""

from moegen.numerics.layouts.sm90_rows import K64R8
from moegen.numerics.reference.ops import defined_rows, run_op, run_pipeline
from moegen.numerics.reference.routing import Routing, route
from moegen.numerics.reference.row_layouts import RowLayout, register_row_layout, row_layout

register_row_layout(K64R8())

__all__ = [
    "Routing",
    "RowLayout",
    "defined_rows",
    "register_row_layout",
    "route",
    "row_layout",
    "run_op",
    "run_pipeline",
]
