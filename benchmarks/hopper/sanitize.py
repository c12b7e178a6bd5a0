"""Runs every built sm_90a pipeline of some packages once, for compute-sanitizer to look at.

    compute-sanitizer --tool memcheck python -m benchmarks.hopper.sanitize PACKAGE ... [--tokens 1,20,200]

The specs of ``sanitize_specs`` hold every kernel family. Inputs go to experts by a Zipf profile, so that one call has
empty experts, small ones and one that takes several tiles.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from moegen.core.enums import Target
from moegen.tune.inputs import make_tokens, make_weights, package_shape
from moegen.tune.rig import make_rig, open_book
from moegen.tune.routing import parse_routing

POISON = 0x7F


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("packages", type=Path, nargs="+")
    parser.add_argument("--tokens", default="1,20,200")
    options = parser.parse_args()
    kernels: set[str] = set()
    for package in options.packages:
        book = open_book(package, Target.SM_90A)
        shape = package_shape(book)
        rig = make_rig(book, make_weights(shape, seed=1))
        for tokens in map(int, options.tokens.split(",")):
            inputs = make_tokens(shape, tokens, parse_routing("zipf=1"), seed=1).to("cuda")
            for pipeline in rig.pipelines.values():
                if pipeline.serves(tokens):
                    rig.run(pipeline.name, inputs, poison=POISON)
                    kernels |= {step.variant for step in pipeline.steps}
        torch.cuda.synchronize()
    for variant in sorted(kernels):
        print(variant)


if __name__ == "__main__":
    main()
