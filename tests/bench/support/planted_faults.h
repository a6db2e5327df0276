// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Compressors of this program that begin to fail while it trains: linked so that `compress::make_compressor` makes them
// (option --wrap of the linker). Until plant() they do as the real ones do.
#pragma once

#include <string>

namespace gradtune::bench {

// "decoder": every element is decoded to the place behind its own. "residual": what an encoder keeps is forgotten.
// "scale": one block of 64 elements is decoded to twice its value. Throws std::invalid_argument for another name.
void plant(const std::string& fault);

}  // namespace gradtune::bench
