#!/usr/bin/env bash
# Builds the check and benchmark of the attention or gemm kernels: build.sh paged_attention|gemm OUTPUT [older]. Needs
# nvcc. With "older", the portable kernels are compiled to PTX for compute capability 8.0, which the driver compiles for
# the GPU.
#
#   OUTPUT check SEED COUNT   compares COUNT random cases per kernel with float64, and two runs with each other
#   OUTPUT tiny               a few small cases, for compute-sanitizer
#   OUTPUT bench              times at the sizes of the network
set -euo pipefail
usage="usage: build.sh paged_attention|gemm OUTPUT [older]"
output=${2:?$usage}
portable=(-gencode=arch=compute_90,code=sm_90)
if [ "${3:-}" = older ]; then portable=(-gencode=arch=compute_80,code=compute_80 -DIN_TURN); fi
case $1 in
paged_attention) kernels="paged_attention paged_attention_hopper" ;;
gemm) kernels="gemm gemv gemm_hopper" ;;
*) echo "$usage" >&2; exit 2 ;;
esac
here=$(cd "$(dirname "$0")" && pwd)
objects=$(mktemp -d)
trap 'rm -r "$objects"' EXIT
flags=(-std=c++17 -Xcompiler -static-libstdc++ -Xcompiler -static-libgcc)
for kernel in $kernels; do
    target=("${portable[@]}")
    if [[ $kernel == *_hopper ]]; then target=(-gencode=arch=compute_90a,code=sm_90a); fi
    nvcc "${flags[@]}" -O3 -lineinfo "${target[@]}" -c "$here/../$kernel.cu" -o "$objects/$kernel.o"
done
nvcc "${flags[@]}" -O1 "${portable[@]}" -c "$here/$1_test.cu" -o "$objects/test.o"
nvcc "${flags[@]}" "${portable[@]}" "$objects"/*.o -o "$output"
