"""Compiles the peers' just-in-time kernels before a timed run: `python -m benchmarks.hopper.warm SHAPE [PEER ...]`."""

from __future__ import annotations

import sys

import torch

from benchmarks.hopper.common import ROTATE, make_cell, make_weights
from benchmarks.hopper.peers.adapters import ALL, release

PEERS = ("humming_idx", "humming_grp")


def main() -> None:
    shape, *peers = sys.argv[1:]
    weights = make_weights(shape)
    for key in peers or PEERS:
        peer = ALL[key]()
        peer.setup(shape, weights)
        for tokens in ROTATE:
            stages, _ = peer.make(make_cell(shape, tokens, "uniform"))
            stages["moe"][0]()
            torch.cuda.synchronize()
        del peer
        release()


if __name__ == "__main__":
    main()
