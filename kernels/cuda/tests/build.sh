#!/usr/bin/env bash
# Builds the check and benchmark of some kernels: build.sh paged_attention|product OUTPUT. Needs nvcc.
#
#   OUTPUT check SEED COUNT   COUNT random cases a kernel against float64; poisoned outputs, twice the same bits
#   OUTPUT tiny               a few small cases, for compute-sanitizer
#   OUTPUT bench              times at the sizes of the network
set -euo pipefail
usage="usage: build.sh paged_attention|product OUTPUT"
output=${2:?$usage}
case $1 in
paged_attention) kernels="paged_attention paged_attention_hopper" ;;
product) kernels="product product_few_rows product_hopper" ;;
*) echo "$usage" >&2; exit 2 ;;
esac
here=$(cd "$(dirname "$0")" && pwd)
objects=$(mktemp -d)
trap 'rm -r "$objects"' EXIT
flags=(-std=c++17 -Xcompiler -static-libstdc++ -Xcompiler -static-libgcc)
for kernel in $kernels; do
    target=90
    if [[ $kernel == *_hopper ]]; then target=90a; fi
    nvcc "${flags[@]}" -O3 -lineinfo -gencode=arch=compute_$target,code=sm_$target -c "$here/../$kernel.cu" -o "$objects/$kernel.o"
done
nvcc "${flags[@]}" -O1 -gencode=arch=compute_90,code=sm_90 -c "$here/$1_test.cu" -o "$objects/test.o"
nvcc "${flags[@]}" -gencode=arch=compute_90,code=sm_90 "$objects"/*.o -o "$output"
