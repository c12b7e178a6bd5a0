#!/bin/sh
# The first hour on a B200 (or B300: TARGET=sm_103a): builds, checks bytes, tunes and measures one spec. Run from a checkout.
#
#   benchmarks/blackwell/run_on_b200.sh [specs/quickstart.yaml]             needs the GPU
#   benchmarks/blackwell/run_on_b200.sh --dry-run [specs/quickstart.yaml]   every step, as far as it goes without one
#
# What it writes into results/ is what this project lacks: no kernel here has run on a Blackwell GPU yet.
# Exit codes: 2 not installed or wrong arguments, 3 no such GPU, else that of the step which failed.
set -eu

dry=
if [ "${1:-}" = --dry-run ]; then
  dry=yes
  shift
fi
spec=${1:-specs/quickstart.yaml}
target=${TARGET:-sm_100a}
name=$(basename "${spec%.*}")
out=${OUT:-results}/$name-$target${dry:+-dry}
bin=${VENV:-.venv}/bin

refuse() {
  code=$1
  shift
  printf '%s\n' "$@" >&2
  exit "$code"
}

# Runs a step, keeps and shows what it says; ends with its exit code when it fails.
step() {
  said=$1
  shift
  code=0
  "$@" >"$said" || code=$?
  cat "$said"
  [ "$code" = 0 ] || exit "$code"
}

case $target in
  sm_100a) wanted=10.0 gpu=B200 ;;
  sm_103a) wanted=10.3 gpu=B300 ;;
  *) refuse 2 "TARGET is sm_100a or sm_103a, not $target" ;;
esac
test -f "$spec" || refuse 2 "no spec file $spec"
test -x "$bin/moegen" || refuse 2 "moegen is not installed in ${VENV:-.venv}" "make test, or python -m venv .venv && .venv/bin/pip install -e '.[test]'"
if [ -z "$dry" ]; then
  found=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -u | grep . | paste -s -d ' ' -) || found=
  case " $found " in
    *" $wanted "*) ;;
    *) refuse 3 "no $gpu here: compute capability $wanted is needed, found: ${found:-no GPU}" \
      "Without one: $0 --dry-run $spec builds, interprets small batches, and shows what would be measured" ;;
  esac
fi

mkdir -p "$out"
git rev-parse HEAD >"$out/commit" 2>/dev/null || echo unknown >"$out/commit"
"$bin/moegen" doctor >"$out/doctor.txt" || true

echo "1/5 build: every variant must compile, without spills"
"$bin/moegen" generate "$spec" --out "$out/package" --target "$target"
step "$out/build.txt" "$bin/moegen" build "$out/package" --target "$target"

if [ -n "$dry" ]; then
  echo "2/5 bytes: the default pipeline for one token, interpreted"
  pipeline=$("$bin/python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["targets"][sys.argv[2]]["default"])' \
    "$out/package/manifest.json" "$target")
  step "$out/verify.txt" "$bin/moegen" verify "$out/package" --target "$target" --pipeline "$pipeline" --tokens 1
  echo "3/5 tune and 5/5 report: need the GPU; the same verbs run on the CPU in docs/examples/demo.py"
  echo "4/5 peers: one matrix product on the CPU instead, to see that the clockwork turns"
  "$bin/python" benchmarks/blackwell/peers.py "$spec" "$out/peers.json" --dry-run
  echo "dry run done: $out"
  exit 0
fi

step "$out/device.csv" nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,power.limit --format=csv
echo "2/5 bytes: every pipeline against the reference, on this GPU"
step "$out/verify.txt" "$bin/moegen" verify "$out/package" --target "$target"

echo "3/5 tune: times of every pipeline over the spec's token counts"
step "$out/tune.txt" "$bin/moegen" tune "$out/package" --target "$target"

echo "4/5 peers: block-scaled products of the library on this GPU, at the same shapes"
"$bin/python" benchmarks/blackwell/peers.py "$spec" "$out/peers.json"

echo "5/5 report"
"$bin/moegen" report "$out/package" --target "$target" --output "$out/report.html"
echo "done: please attach $out to an issue"
