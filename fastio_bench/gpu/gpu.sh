#!/usr/bin/env bash
# Everything that needs a GPU, in one call: builds fastio in place, runs the GPU tests and the benchmarks, and leaves
# results in $OUT (default: ./gpu-results), one archive for each stage as soon as it is over. Stages may be named:
#
#     fastio_bench/gpu/gpu.sh [doctor] [tests] [offload] [hybrid] [io] [peers]
#
# Nothing is downloaded: the machine's own torch is used, and wheels that it lacks are taken from $WHEELS if that is
# set: platformdirs, nanobind, scikit-build-core, pytest, hypothesis, click, rich, matplotlib; for GPUDirect Storage
# kvikio, libkvikio and rapids-logger (-cu12 or -cu13, as torch's CUDA); for the sparse codec cupy.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

out=${OUT:-$PWD/gpu-results}
site=$(mktemp -d)
results=$(mktemp -d)
trap 'rm -rf "$site" "$results"' EXIT
mkdir -p "$out"
export PYTHONPATH=$site PYTHONUNBUFFERED=1 FASTIO_DICTIONARY_DIR=$site/dictionaries

install=(python3 -m pip install --quiet --no-index --no-deps --no-compile --target "$site")
if [[ -n ${WHEELS:-} ]]; then "${install[@]}" "$WHEELS"/*.whl; fi
"${install[@]}" --no-build-isolation .

pytest=(python3 -m pytest -c "$PWD/pyproject.toml" --rootdir "$PWD" "$PWD/tests" -m gpu)
bench=(python3 -m fastio_bench.cli)
status=0
# The name of a stage, and its command, which may write into $results/<name>.
stage() {
    local name=$1
    shift
    mkdir -p "$results/$name"
    (cd "$site" && "$@") 2>&1 | tee "$results/$name/said.txt" || status=1
    tar -C "$results" -czf "$out/$name.tar.gz" "$name"
}
if (($# == 0)); then set -- doctor tests offload hybrid io peers; fi
for name; do
    case $name in
    doctor) stage doctor "${bench[@]}" doctor --out "$results/doctor" ;;
    tests) stage tests "${pytest[@]}" --continue-on-collection-errors --junitxml="$results/tests/junit.xml" ;;
    offload) stage offload python3 -m fastio_bench.offload.gpu_offload --dir "$site" --out "$results/offload" ;;
    hybrid) stage hybrid "${bench[@]}" hybrid --out "$results/hybrid" ;;
    io) stage io "${bench[@]}" io --quick --device cuda --out "$results/io" ;;
    peers) stage peers "${bench[@]}" peers --quick --out "$results/peers" ;;
    *) echo "gpu.sh: no stage is called $name" >&2 && exit 2 ;;
    esac
done
exit $status
