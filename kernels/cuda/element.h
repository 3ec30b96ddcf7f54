// What numbers in memory are. Sums are float32 whatever they are.
#pragma once
#include "symbols.h"

typedef enum { ELEMENT_F32 = 0, ELEMENT_F16 = 1, ELEMENT_BF16 = 2 } ElementType;
