// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Orthonormal columns for `powersgd`. Internal to engine/compress.
#pragma once

#include <cstddef>

namespace gradtune::compress {

// Makes the columns, each contiguous and one behind the other, an orthonormal basis of what they span: Gram-Schmidt,
// where each column is freed of those before it twice, as once is not enough for columns that are nearly alike; sums are
// of double precision. A column of which less than a millionth is left was a combination of those before it, but for
// rounding, and becomes zero, as does one that is not finite.
void orthonormalise(float* columns, size_t rows, size_t count);

}  // namespace gradtune::compress
