// Products of so few rows that the weights, read once, are all that takes time: the part of product() for up to 8.
#pragma once
#include "product.h"

bool product_few_rows_fits(const Product &product);
cudaError_t product_few_rows(const Product &product, cudaStream_t stream);
