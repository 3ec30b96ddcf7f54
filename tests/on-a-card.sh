#!/usr/bin/env bash
# Packs the tests that use an NVIDIA card, to be run on a machine that has one and need not have Rust:
#
#   tests/on-a-card.sh FOLDER      builds (with nvcc on the path) and fills FOLDER: programs, expected outputs, run.sh
#   FOLDER/run.sh [--ignored]      there: all tests; with --ignored those of the published size, too (20 GB, minutes)
set -euo pipefail
folder=$(realpath -m "${1:?usage: on-a-card.sh FOLDER}")
cd "$(dirname "$0")/.."

mkdir -p "$folder/bin" "$folder/goldens"
cargo test --release --workspace --features cuda --no-run --message-format=json-render-diagnostics |
  python3 -c '
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    program = message.get("executable")
    if program and message["profile"]["test"] and "/kernels/" in message["manifest_path"] + "/" or \
       program and message["profile"]["test"] and message["manifest_path"].endswith("/tests/Cargo.toml"):
        print(program, message["target"]["name"])
' | while read -r program name; do
    install -m 755 "$program" "$folder/bin/$name"
    strip "$folder/bin/$name"
  done
cp tests/goldens/*.safetensors "$folder/goldens/"

cat > "$folder/run.sh" <<'RUN'
#!/usr/bin/env bash
# Runs the tests packed beside it, in this folder, where they look for their expected outputs. --nocapture shows each error beside
# its bound, and the reason where there is no card.
set -euo pipefail
cd "$(dirname "$0")"
export PERIPLUS_NEEDS_CARD=1 # without one nothing would be shown
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/cuda/lib64"
for program in bin/*; do
  echo "== $program"
  "$program" --nocapture --test-threads 4
done
if [ "${1:-}" = --ignored ]; then
  bin/cuda --nocapture --ignored
fi
RUN
chmod +x "$folder/run.sh"
