"""Compiles every kernel that GPU tests launch, without a GPU and side by side, for ``pytest --kernels=FOLDER``.

    PYTHONPATH=.:tests python -m hopper.prebuild FOLDER [--jobs 12] [--only kernels|packages]

What the folder holds already, by content, stays.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from hopper import test_gpu_block, test_gpu_field_cases, test_gpu_formats, test_gpu_gemms, test_gpu_streams
from hopper.workshop import Workshop
from runtime import test_gpu_shapes, test_gpu_sizes
from runtime.packages import STORE, build_for_gpu, generate_gpu_package
from tune import test_gpu_tune

from moegen.store.artifacts import ArtifactStore

KERNELS = (test_gpu_gemms, test_gpu_streams, test_gpu_block, test_gpu_formats, test_gpu_field_cases)
PACKAGES = (test_gpu_sizes, test_gpu_shapes, test_gpu_formats, test_gpu_tune)


def build_kernels(folder: Path, jobs: int) -> None:
    """Single kernels, where ``hopper_workshop`` looks for them."""
    variants = {variant.name: variant for tests in KERNELS for variant in tests.variants()}
    Workshop(folder).prepare(list(variants.values()), jobs)
    print(f"{len(variants)} kernels")


def build_packages(folder: Path, jobs: int) -> None:
    """Whole packages, into a store that ``gpu_package`` searches."""
    store = ArtifactStore(folder / STORE)
    for tests in PACKAGES:
        for changes in tests.PACKAGES:
            with tempfile.TemporaryDirectory() as place:
                build_for_gpu(generate_gpu_package(Path(place), **changes), store, jobs)
        print(f"{len(tests.PACKAGES)} packages of {tests.__name__}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", choices=("kernels", "packages"))
    options = parser.parse_args()
    if options.only != "packages":
        build_kernels(options.folder, options.jobs)
    if options.only != "kernels":
        build_packages(options.folder, options.jobs)


if __name__ == "__main__":
    main()
