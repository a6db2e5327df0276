// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Asks a queue for one operation of a bucket: everything but collectives.
#pragma once

#include "engine/compress/compressor.h"
#include "engine/compress/queue.h"
#include "engine/core/result.h"
#include "engine/exec/memory.h"
#include "engine/exec/program.h"

namespace gradtune::exec {

struct BucketMemory {
  std::byte* pool;
  std::byte* gradient;    // first element of the bucket in its arena
  const float* residual;  // null where none is kept
  float* residual_next;
  const std::byte* state;  // of all codecs
  std::byte* state_next;
  int size;       // ranks
  uint64_t seed;  // of random compressors
  uint32_t step;
};

// What operations work on: the gradient, or its fp32 staging; of a 16-bit gradient there is staging wherever one needs
// it.
float* dense(const BucketProgram& bucket, const BucketMemory& memory);

// What is found goes to the verdict, which is of this operation alone. An error where a payload was rejected and the
// work is done already; of a queue that works on, the verdict tells later.
core::Status run_op(const BucketProgram& bucket, const Op& op, const BucketMemory& memory, compress::Queue& queue,
                    compress::Verdict& verdict);

}  // namespace gradtune::exec
