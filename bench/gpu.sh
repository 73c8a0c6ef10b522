#!/usr/bin/env bash
# Everything that needs a GPU, in one call: builds fastio in place, runs the GPU tests and the benchmarks, and leaves
# results in $OUT (default: ./gpu-results). Nothing is downloaded: the machine's own torch is used, and wheels that it
# lacks (nanobind, scikit-build-core, pytest, hypothesis, kvikio, ...) are taken from $WHEELS if that is set.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=${OUT:-$PWD/gpu-results}
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
mkdir -p "$out"
export PYTHONPATH=$site PYTHONUNBUFFERED=1 FASTIO_DICTIONARY_DIR=$out/dictionaries

install=(python3 -m pip install --quiet --no-index --no-deps --no-compile --target "$site")
if [[ -n ${WHEELS:-} ]]; then "${install[@]}" "$WHEELS"/*.whl; fi
"${install[@]}" --no-build-isolation .

status=0
(cd "$site" && python3 -m fastio.bench.cli doctor) 2>&1 | tee "$out/doctor.txt" || status=1
pytest=(python3 -m pytest -c "$PWD/pyproject.toml" --rootdir "$PWD" "$PWD/tests")
(cd "$site" && "${pytest[@]}" -m gpu --junitxml="$out/gpu-tests.xml") 2>&1 | tee "$out/gpu-tests.txt" || status=1
(cd "$site" && python3 -m fastio.bench.gpu_offload --dir "$site" --out "$out/offload") 2>&1 | tee "$out/offload.txt" || status=1
for command in hybrid "io --quick --device cuda" "peers --quick"; do
    name=${command%% *}
    # shellcheck disable=SC2086
    (cd "$site" && python3 -m fastio.bench.cli $command --out "$out/$name") 2>&1 | tee "$out/$name.txt" || status=1
done
exit $status
