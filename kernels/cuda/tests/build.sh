#!/usr/bin/env bash
# Builds the check and benchmark of the attention kernels: build.sh OUTPUT. Needs nvcc.
#
#   OUTPUT check SEED COUNT   COUNT random cases a kernel against float64; poisoned outputs and unused rows, twice the same bits
#   OUTPUT tiny               a few small cases, for compute-sanitizer
#   OUTPUT bench              times at the sizes of the network
set -euo pipefail
output=${1:?usage: build.sh OUTPUT}
here=$(cd "$(dirname "$0")" && pwd)
objects=$(mktemp -d)
trap 'rm -r "$objects"' EXIT
flags=(-std=c++17 -Xcompiler -static-libstdc++ -Xcompiler -static-libgcc)
nvcc "${flags[@]}" -O3 -lineinfo -gencode=arch=compute_90a,code=sm_90a -c "$here/../paged_attention_hopper.cu" -o "$objects/hopper.o"
nvcc "${flags[@]}" -O3 -lineinfo -gencode=arch=compute_90,code=sm_90 -c "$here/../paged_attention.cu" -o "$objects/portable.o"
nvcc "${flags[@]}" -O1 -gencode=arch=compute_90,code=sm_90 -c "$here/paged_attention_test.cu" -o "$objects/test.o"
nvcc "${flags[@]}" -gencode=arch=compute_90,code=sm_90 "$objects"/*.o -o "$output"
