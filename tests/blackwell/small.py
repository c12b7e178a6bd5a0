"""Three small gemms that go around every pipeline: fused by one CTA, compact by a pair through boxes, swapped."""

from blackwell.grid import FIRST_AXES, SECOND_AXES, GemmCase

from moegen.core.enums import Epilogue

_SHORT = {"cols": 64, "k": 64, "stages": 2, "acc_stages": 2, "routing": "mixed"}
_FIRST = {name: values[0] for name, values in FIRST_AXES.items()} | _SHORT | {"geometry": (144, 208)}
_SECOND = {name: values[0] for name, values in SECOND_AXES.items()} | _SHORT | {"geometry": (272, 144)}
FUSED = GemmCase({**_FIRST, "form": "plain", "epilogue": Epilogue.FUSED_FP4, "bulk_stores": False})
FUSED_SWAPPED = GemmCase({**_FIRST, "form": "swapped", "epilogue": Epilogue.FUSED_FP4, "bulk_stores": False})
PAIR = GemmCase({**_FIRST, "form": "pair", "epilogue": Epilogue.COMPACT, "bulk_stores": True})
SWAPPED = GemmCase({**_SECOND, "form": "swapped", "bulk_stores": True})
