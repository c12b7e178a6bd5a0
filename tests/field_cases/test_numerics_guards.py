"""Tests of numerics notice the fault that they guard against."""

from collections.abc import Callable
from functools import partial

import pytest
from field_cases import test_activation_and_routing as routing_cases
from field_cases import test_layouts as layout_cases
from field_cases import test_quantize as quantize_cases
from numerics import faults
from numerics.test_reference import test_padding_is_zero_also_where_a_zero_block_has_a_scale as padding_is_zero

from moegen.core.enums import CombineMode, Contract, Epilogue

GUARDS: list[tuple[Callable[[], faults.Fault], Callable[[], None]]] = [
    (faults.midpoints_go_away_from_zero, partial(quantize_cases.test_fr_03_midpoints_go_to_the_even_code, Contract.TE)),
    (faults.scale_cast_overflows_to_nan, quantize_cases.test_fr_02_scales_saturate_from_448_on),
    (
        faults.scale_cast_overflows_to_nan,
        partial(quantize_cases.test_fr_02_a_static_scale_below_the_data_saturates, Contract.TE),
    ),
    (faults.reciprocal_of_zero_stays_infinite, partial(quantize_cases.test_fr_01_zeros_quantise_to_zeros, Contract.TE)),
    (
        faults.reciprocal_of_zero_stays_infinite,
        partial(quantize_cases.test_fr_04_a_tiny_block_underflows_to_zero, Contract.CUTLASS_RN),
    ),
    (faults.limits_are_dropped, routing_cases.test_fr_44_clamped_swiglu_uses_all_its_constants),
    (
        faults.gate_rounding_is_ignored,
        partial(routing_cases.test_sd_07_both_rounding_points_reach_the_layer, Epilogue.COMPACT),
    ),
    (faults.order_is_ignored, layout_cases.test_fr_18_the_order_is_a_value_that_decides_the_rows),
    (faults.gates_scale_serves_both, layout_cases.test_fr_19_each_half_uses_its_own_second_level_scale),
    (
        faults.input_weight_counts_again_at_the_end,
        partial(routing_cases.test_fr_45_each_route_has_its_own_scaled_copy, 3, True),
    ),
    (
        faults.foreign_ids_go_to_the_nearest_expert,
        partial(
            routing_cases.test_fr_46_ids_outside_the_rank_add_exactly_nothing, CombineMode.ORDERED, Epilogue.COMPACT
        ),
    ),
    (faults.padding_rows_keep_their_scales, partial(padding_is_zero, Contract.MODELOPT)),
    (faults.second_swizzle_is_let_through, layout_cases.test_fr_17_a_swizzled_tensor_is_not_swizzled_again),
    (faults.rows_of_a_tile_are_not_spread, layout_cases.test_fr_17_literal_offsets),
]


@pytest.mark.parametrize(("fault", "test"), GUARDS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_guard_notices_its_fault(fault, test):
    test()
    with fault(), pytest.raises((AssertionError, pytest.fail.Exception, RuntimeError)):
        test()
