// Products of so few rows that the weights, read once, are all that takes time: the part of periplus_gemm() for up to 8.
#pragma once
#include "gemm.h"

bool gemv_fits(const Gemm &gemm);
cudaError_t gemv(const Gemm &gemm, cudaStream_t stream);
