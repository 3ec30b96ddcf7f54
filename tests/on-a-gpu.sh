#!/usr/bin/env bash
# Packs the tests that need an NVIDIA GPU, for a machine that has a GPU but no Rust:
#
#   tests/on-a-gpu.sh FOLDER       builds the tests (needs nvcc); fills FOLDER with programs, expected outputs and run.sh
#   FOLDER/run.sh [full-size]      runs all tests; "full-size" adds the test of the published size (20 GB, minutes)
set -euo pipefail
folder=$(realpath -m "${1:?usage: on-a-gpu.sh FOLDER}")
cd "$(dirname "$0")/.."

mkdir -p "$folder/bin" "$folder/bench" "$folder/goldens"
cargo test --release -p periplus-kernels -p periplus-tests --features periplus-kernels/cuda,periplus-tests/cuda \
  --tests --bench attention --no-run --message-format=json-render-diagnostics |
  python3 -c '
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable"):
        folder = "bench" if message["target"]["kind"] == ["bench"] else "bin"
        print(message["executable"], folder + "/" + message["target"]["name"])
' | while read -r program name; do
    install -m 755 "$program" "$folder/$name"
    strip "$folder/$name"
  done
cp tests/goldens/*.safetensors "$folder/goldens/"

cat > "$folder/run.sh" <<'RUN'
#!/usr/bin/env bash
# Runs the tests in this folder, including those that need a GPU and are ignored by default. A test that does not run
# counts as a failure. The output shows each error and its bound.
set -euo pipefail
cd "$(dirname "$0")"
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/cuda/lib64"
log=$(mktemp)
trap 'rm "$log"' EXIT
run() {
  echo "== $*"
  "$@" --nocapture | tee "$log"
  if ! grep -q '^test result: ok\..* 0 ignored;' "$log"; then
    echo "tests of $1 were ignored" >&2
    exit 1
  fi
}
skipped=(--skip full_size)
if [ "$(nvidia-smi --list-gpus | wc -l)" -lt 2 ]; then
  echo "only one GPU: tests that need two are skipped"
  skipped+=(--skip two_gpus)
fi
for program in bin/*; do
  run "$program" --include-ignored "${skipped[@]}" --test-threads 4
done
if [ "${1:-}" = full-size ]; then
  run bin/cuda --include-ignored full_size
fi
RUN
chmod +x "$folder/run.sh"
