// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Asks a queue for one operation of a bucket: everything but collectives.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "engine/compress/compressor.h"
#include "engine/compress/queue.h"
#include "engine/compress/sparse/rows.h"
#include "engine/core/result.h"
#include "engine/exec/arrived.h"
#include "engine/exec/memory.h"
#include "engine/exec/program.h"

namespace gradtune::exec {

class Device;

// Of a step and a bucket that works on lists of rows: what arrived, and the lists.
struct RowState {
  Arrived arrived;
  core::RowOrder order;
  std::array<compress::RowBuffer, 2> lists = {};
  compress::RowScratch scratch;
  std::vector<std::span<const std::byte>> spans;  // of payloads, for a decode
  int64_t own = 0;                                // rows that this rank has
};

struct BucketMemory {
  core::PerSpace<std::byte*> pools;
  std::byte* gradient;    // first element of the bucket in its arena
  const float* residual;  // null where none is kept; where the bucket begins
  float* residual_next;
  core::PerSpace<const std::byte*> state;  // of all codecs
  core::PerSpace<std::byte*> state_next;
  Device* device;  // null where all is the host's
  int size;        // ranks
  uint64_t seed;   // of random compressors
  uint32_t step;
  RowState* rows = nullptr;  // of a bucket that works on lists

  std::byte* at(const Address& address) const;
};

// What operations of that space work on: the gradient, or its fp32 staging; of a 16-bit gradient there is staging
// wherever one needs it.
float* dense(const BucketProgram& bucket, const BucketMemory& memory, core::Space space);

// Numbers of 16 bits made a share of the average, in their place: as the codec of that type reads and writes them.
struct NumbersScaling {
  std::byte* numbers = nullptr;
  core::DType dtype = core::DType::bf16;
  int64_t n = 0;
  float factor = 1;
  int summed = 1;                        // as in compress::Encode
  compress::Verdict* verdict = nullptr;  // never null; a result that is not finite, or may become one, is told there
};
void scale(const NumbersScaling& job, const compress::Compressor& codec, compress::HostQueue& queue);

// What is found goes to the verdict, which is of this operation alone. An error where a payload was rejected and the
// work is done already; of a queue that works on, the verdict tells later.
core::Status run_op(const BucketProgram& bucket, const Op& op, const BucketMemory& memory, compress::Queue& queue,
                    compress::Verdict& verdict);

// The payloads of an encode, as this rank made them, decoded to where their elements come from.
void decode_own(const BucketProgram& bucket, const Op& op, const BucketMemory& memory, compress::Queue& queue,
                compress::Verdict& verdict);

}  // namespace gradtune::exec
