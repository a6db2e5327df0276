// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Reduces the parts of several ranks to one, for all code of this program that does so itself. Parts are added in
// the order of ranks, whatever the order of their arrival; 16-bit floats are added in fp32 and rounded once. So
// every run gives the same bits. It uses the calling thread alone and allocates no memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/core/wire.h"

namespace gradtune::comm {

// Writes the sum (or the maximum) of `count` elements of every input to every target; a target may be one of the
// inputs.
void add_up(core::WireType type, core::Reduction reduction, std::span<const std::byte* const> inputs,
            std::span<std::byte* const> targets, int64_t count);

}  // namespace gradtune::comm
