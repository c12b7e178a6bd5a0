"""Compiles every kernel of this folder's GPU tests, without a GPU and side by side, for ``pytest --kernels FOLDER``.

PYTHONPATH=.:tests python -m hopper.prebuild FOLDER
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hopper import test_gpu_block, test_gpu_field_cases, test_gpu_formats, test_gpu_gemms, test_gpu_streams
from hopper.workshop import Workshop

SETS = (test_gpu_gemms, test_gpu_streams, test_gpu_block, test_gpu_formats, test_gpu_field_cases)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    variants = {variant.name: variant for tests in SETS for variant in tests.variants()}
    Workshop(options.folder).prepare(list(variants.values()))
    print(f"{len(variants)} kernels in {options.folder}")


if __name__ == "__main__":
    main()
