// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The members of the family that sends codes of blocks (block_codes.cc says what they are), for the host and for
// devices. Internal to engine/compress.
#pragma once

#include "engine/compress/blocks.h"
#include "engine/compress/codes/block_codes_kernels.h"

namespace gradtune::compress {

// One of them. In the table of the family what a spec's parameter says is 0.
struct BlockCode {
  uint32_t id;
  CodeFormat format;
  int64_t block;
};
BlockCode block_code_of(const core::CompressorSpec& spec);

BlockLayout block_code_layout(const BlockCode& code, int64_t n);

}  // namespace gradtune::compress
