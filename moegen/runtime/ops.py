"""The layer as a torch custom op, so that ``torch.compile(fullgraph=True)`` and graph capture see one opaque call.

The op names its layer by an integer handle: weights and workspace stay outside the graph, so reloading weights in place
does not invalidate compiled code.
"""

import itertools
import weakref

import torch

from moegen.core.errors import MoegenError
from moegen.runtime.engine import Engine

_ENGINES: "weakref.WeakValueDictionary[int, Engine]" = weakref.WeakValueDictionary()
_HANDLES = itertools.count(1)


def register(engine: Engine) -> int:
    """Gives an engine a handle for as long as something else keeps it alive."""
    handle = next(_HANDLES)
    _ENGINES[handle] = engine
    return handle


def _run(x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, handle: int) -> torch.Tensor:
    engine = _ENGINES.get(handle)
    if engine is None:
        raise MoegenError("the layer of this compiled code is gone", f"handle {handle}", "keep the MoELayer alive")
    return engine.run(x, topk_ids, topk_weights)


def _shape_only(x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, handle: int) -> torch.Tensor:
    return torch.empty_like(x)


# Registered by hand: ``torch.library.custom_op`` adds about 25 µs of Python to every call.
_LIBRARY = torch.library.Library("moegen", "DEF")
_LIBRARY.define("moe_layer(Tensor x, Tensor topk_ids, Tensor topk_weights, int handle) -> Tensor")
for _device in ("CPU", "CUDA"):
    _LIBRARY.impl("moe_layer", _run, _device)
torch.library.register_fake("moegen::moe_layer", _shape_only, lib=_LIBRARY)

moe_layer = torch.ops.moegen.moe_layer.default
"""``moe_layer(x, topk_ids, topk_weights, handle) -> y``: the layer behind ``handle``; arguments and errors as
:meth:`moegen.runtime.engine.Engine.run`, and MoegenError when that layer no longer exists."""
