// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// How ranks' parts become one, wherever this program does that itself: in the order of ranks, whatever the order of
// arrival, and 16-bit floats in fp32, rounded once. So results are the same bits in every run. On the calling thread
// alone, without memory of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/core/wire.h"

namespace gradtune::comm {

// `count` elements of every input, added up (or the largest of them), into every target, each of which may be an input.
void add_up(core::WireType type, core::Reduction reduction, std::span<const std::byte* const> inputs,
            std::span<std::byte* const> targets, int64_t count);

}  // namespace gradtune::comm
