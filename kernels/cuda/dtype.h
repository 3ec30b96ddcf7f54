// What numbers in memory are. Sums are float32 whatever they are.
#pragma once

typedef enum { DTYPE_F32 = 0, DTYPE_F16 = 1, DTYPE_BF16 = 2 } DType;
