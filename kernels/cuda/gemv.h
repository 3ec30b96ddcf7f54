// Interface of the gemv kernel: the part of periplus_gemm() for up to 8 rows, whose time is that of reading the weights
// once.
#pragma once
#include "gemm.h"

bool gemv_fits(const Gemm &gemm);
cudaError_t gemv(const Gemm &gemm, cudaStream_t stream);
