// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Compressors of this program that begin to fail while it trains. The linker's option --wrap replaces
// `compress::make_compressor`, so that it makes them. Until plant() they behave like the real ones.
#pragma once

#include <string>

namespace gradtune::bench {

// "decoder": every element is decoded to the place behind its own. "residual": an encoder loses its residual.
// "scale": one block of 64 elements is decoded to twice its value. Throws std::invalid_argument for another name.
void plant(const std::string& fault);

}  // namespace gradtune::bench
