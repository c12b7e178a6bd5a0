#!/bin/sh
# The first hour on a B200 (or B300: TARGET=sm_103a): builds, checks bytes, tunes and measures one spec. Run from a checkout.
#
#   benchmarks/blackwell/run_on_b200.sh [specs/quickstart.yaml]
#
# What it writes into results/ is what this project lacks: no kernel here has run on a Blackwell GPU yet.
set -eu

spec=${1:-specs/quickstart.yaml}
target=${TARGET:-sm_100a}
out=results/$(basename "$spec" .yaml)-$target
bin=${VENV:-.venv}/bin

test -x "$bin/moegen" || { echo "make test, or python -m venv .venv && .venv/bin/pip install -e '.[test]'" >&2; exit 1; }
mkdir -p "$out"
nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,power.limit --format=csv | tee "$out/device.csv"
git rev-parse HEAD > "$out/commit"
"$bin/moegen" doctor | tee "$out/doctor.txt"

echo "1/4 build: every variant must compile"
"$bin/moegen" generate "$spec" --out "$out/package" --target "$target"
"$bin/moegen" build "$out/package" --target "$target" | tee "$out/build.txt"

echo "2/4 bytes: every pipeline against the reference, on this GPU"
"$bin/moegen" verify "$out/package" --target "$target" | tee "$out/verify.txt"

echo "3/4 tune: times of every pipeline over the spec's token counts"
"$bin/moegen" tune "$out/package" --target "$target" | tee "$out/tune.txt"

echo "4/4 report"
"$bin/moegen" report "$out/package" --target "$target" --output "$out/report.html"
echo "done: please attach $out to an issue"
