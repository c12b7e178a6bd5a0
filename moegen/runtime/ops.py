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


@torch.library.custom_op("moegen::moe_layer", mutates_args=())
def moe_layer(x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, handle: int) -> torch.Tensor:
    """Runs the layer behind ``handle``; arguments and errors as :meth:`moegen.runtime.engine.Engine.run`.

    Raises:
        MoegenError: that layer no longer exists.
    """
    engine = _ENGINES.get(handle)
    if engine is None:
        raise MoegenError("the layer of this compiled code is gone", f"handle {handle}", "keep the MoELayer alive")
    return engine.run(x, topk_ids, topk_weights)


@moe_layer.register_fake
def _fake(x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, handle: int) -> torch.Tensor:
    return torch.empty_like(x)
