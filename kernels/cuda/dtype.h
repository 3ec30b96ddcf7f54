// Element types of tensors. Sums are always float32.
#pragma once

typedef enum { DTYPE_F32 = 0, DTYPE_F16 = 1, DTYPE_BF16 = 2 } DType;
