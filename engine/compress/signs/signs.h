// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The members of the family that sends signs (signs.cc describes them), for the host and for devices. Internal to
// engine/compress.
#pragma once

#include "engine/compress/blocks.h"
#include "engine/compress/signs/signs_kernels.h"

namespace gradtune::compress {

// One of them. A block of 0 is the spec's parameter.
struct SignCode {
  uint32_t id;
  SignScales scales;
  int64_t block;
  bool has_momentum = false;  // then that is the spec's parameter
};
SignCode sign_code_of(const core::CompressorSpec& spec);

BlockLayout sign_layout(const core::CompressorSpec& spec, int64_t n);

}  // namespace gradtune::compress
