// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Queues one operation of a bucket, of any kind but a collective.
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

// The state of a step for a bucket that works on lists of rows: the arrived gradient and the lists.
struct RowState {
  Arrived arrived;
  core::RowOrder order;
  std::array<compress::RowBuffer, 2> lists = {};
  compress::RowScratch scratch;
  std::vector<std::span<const std::byte>> spans;  // of payloads, for a decode
  int64_t own = 0;                                // the number of rows that this rank has
};

struct BucketMemory {
  core::PerSpace<std::byte*> pools = {};
  std::byte* gradient = nullptr;    // first element of the bucket in its arena
  const float* residual = nullptr;  // where the bucket begins; null if none is kept
  float* residual_next = nullptr;
  core::PerSpace<const std::byte*> state = {};  // of all codecs
  core::PerSpace<std::byte*> state_next = {};
  Device* device = nullptr;  // null if everything is on the host
  int size = 1;              // ranks
  int divisor = 1;           // of the sum over ranks; a rank's share of the result is divided by it
  uint64_t seed = 0;         // of random compressors
  uint32_t step = 0;
  RowState* rows = nullptr;  // of a bucket that works on lists

  std::byte* at(const Address& address) const;
};

// The memory that operations of that space work on: the gradient, or its fp32 staging. A 16-bit gradient has staging
// if any operation needs it.
float* dense(const BucketProgram& bucket, const BucketMemory& memory, core::Space space);

// A job: 16-bit numbers are scaled in place to a share of the average, read and written as the codec of that type
// does.
struct NumbersScaling {
  std::byte* numbers = nullptr;
  core::DType dtype = core::DType::bf16;
  int64_t n = 0;
  float factor = 1;
  int summed = 1;                        // as in compress::Encode
  compress::Verdict* verdict = nullptr;  // never null; told of a result that is not finite, or may become so
};
void scale(const NumbersScaling& job, const compress::Compressor& codec, compress::HostQueue& queue);

// The queue is of the operation's space. Findings go to the verdict, which belongs to this operation alone. Returns an
// error if a payload was rejected and the work is already done; for an asynchronous queue the verdict tells later.
core::Status run_op(const BucketProgram& bucket, const Op& op, const BucketMemory& memory, compress::Queue& queue,
                    compress::Verdict& verdict);

// Decodes the payloads of an encode, as this rank made them, to the place of their elements.
void decode_own(const BucketProgram& bucket, const Encode& encode, const BucketMemory& memory, compress::Queue& queue,
                compress::Verdict& verdict);

}  // namespace gradtune::exec
