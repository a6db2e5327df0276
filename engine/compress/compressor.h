// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The contract of a compressor. It turns n fp32 gradient elements into a payload of fixed size and adds payloads back
// up. One object serves one spec ("topk:0.01"), holds no state, and may be called from any number of threads. The
// caller owns everything that belongs to a bucket or to elements (payloads, scratch, residuals, state).
//
// Error feedback (Seide et al. 2014; Karimireddy et al., ICML 2019). With p = gradient + residual, the payload stands
// for scale * p. The error goes to the next residual: error_scale * (scale * p - decode(payload)). Residual and next
// residual are different memory, so a step that must be undone is undone by not swapping them. The first encode of a
// program on N ranks has scale = 1/N and error_scale = N. The decoded sum over ranks is then the average, and
// residuals stay in units of the unscaled gradient. A shard that was summed and is encoded again has scale = 1 and
// error_scale = N, and *adds* to its owner's next residual.
//
// Payloads. The spec and n fix their size; some payloads need not be full (used_bytes). Opaque payloads begin with a
// 16-byte header {magic and version, compressor id, n, count}, little endian; sections are 16-byte aligned; padding
// is zero. Decoders check header, counts, indices and scales before they use them, and an error names the field that
// is bad (I8). They write nothing outside of their output for any input. Summable payloads are bare arrays of their
// wire type, which a collective reduces to one.
//
// Rounds. Most compressors have one round: encode, a collective, decode. With several rounds, each round's encode
// takes the same gradient and residual, and the payload of the last round stands for scale * p. A decode before the
// last round writes its result to the round memory, which later rounds read. All ranks therefore find the same
// contents there. Only the last encode writes the final next residual.
//
// State is the data that a compressor keeps for a bucket from step to step (a warm start, a threshold, momentum). Its
// bytes are zero at first and whenever another strategy was put in force. There are two copies, as with residuals: a
// step reads one copy, and its last encode or decode writes all of the other. A step is undone by not swapping them.
// A program's first use of a codec has state; when the same codec encodes a sum again, its state is null.
//
// Randomness is counter-based: the number that an element draws is a function of Random and of its position in the
// gradient alone (random-inl.h). It does not depend on buckets, threads or SIMD targets, and no state is kept.
//
// Determinism: the bytes are the same for every thread count and every SIMD target.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "engine/compress/queue.h"
#include "engine/core/compressor.h"
#include "engine/core/gradient_table.h"
#include "engine/core/result.h"
#include "engine/core/wire.h"

namespace gradtune::compress {

// The inputs of the random number generator besides the element. All fields but `rank` are the same on all ranks. A
// compressor whose ranks have to draw the same numbers leaves `rank` out.
struct Random {
  uint64_t seed = 0;  // of the job
  uint32_t step = 0;
  uint32_t rank = 0;
  uint32_t use = 0;  // a different number for each use of the same position in one step, below 2^31
};

// The arguments that encode and decode of the same elements have in common.
struct Work {
  std::span<const core::Matrix> matrices = {};  // among the elements, for compressors that need them
  Random random = {};                           // used by random compressors only, and so is
  int64_t first_element = 0;                    // the position of the first element in the whole gradient
  int64_t row = 0;  // the length of rows that are zero as a whole or not at all, if the range has such; 0: not known
  int round = 0;
  // Aligned to 16 bytes, as is all memory here except arrays of floats.
  std::byte* round_memory = nullptr;  // round_bytes, from the first encode of a step to its last decode
  const std::byte* state = nullptr;   // state_bytes, or null
  std::byte* state_next = nullptr;    // null as state is
};

// The findings of calls, in memory of the queue's space; they are valid when the calls' work is done. Each call adds
// to the verdict, so the owner clears it first. Calls whose work may run at the same time have one verdict each.
struct Verdict {
  // Encode: 1 if scale * p, or its value in the payload, has a non-finite element (fp16 ends at 65504, a mean may
  // overflow). It is also 1 if a sum of `summed` values as large may have one. Decoders accept the payload all the
  // same, so that no rank fails before all ranks have learned of it. The next residual is then garbage that the
  // caller must not use.
  uint32_t nonfinite = 0;
  // Decode: 1 + the position of the first payload that cannot be decoded; 0 if all could be decoded. If one was
  // rejected, `out` holds garbage inside its bounds.
  uint32_t rejected = 0;
  int64_t used_bytes = 0;  // encode: used bytes of its payload; all bytes, if the size is fixed
};

struct Encode {
  std::span<const float> gradient;    // n elements
  const float* residual = nullptr;    // n elements, or null: p = gradient
  float* residual_next = nullptr;     // n elements; null: the error is not kept, and there is no residual
  bool add_to_residual_next = false;  // add the error instead of storing it; then there is no residual either
  float scale = 1;
  float error_scale = 1;
  int summed = 1;  // the number of payloads like this one that collectives will reduce to one
  Work work = {};
  std::span<std::byte> payload;  // payload_bytes of the round; summable ones are aligned to their elements
  std::span<std::byte> scratch;  // at least scratch_bytes
  Verdict* verdict = nullptr;    // never null
};

struct Decode {
  std::span<const std::span<const std::byte>> payloads;  // at least one; aligned as in encode
  int summed = 1;                                        // payloads that a collective reduced to each of these
  std::span<float> out;                                  // n elements, not written before the last round
  bool accumulate = false;
  Work work = {};
  Verdict* verdict = nullptr;  // never null
};

class RowCodec;  // rows.h

class Compressor {
 public:
  virtual ~Compressor() = default;

  virtual const core::CompressorTraits& traits() const = 0;
  virtual const core::CompressorSpec& spec() const = 0;

  // The way a collective reduces the summable payloads of a round to one. Opaque payloads are bytes to it.
  struct Summing {
    core::WireType type = core::WireType::f32;
    core::Reduction reduction = core::Reduction::sum;
  };
  virtual Summing summing(int /*round*/ = 0) const { return {}; }

  int64_t payload_bytes(const core::Extent& extent, int round = 0) const {
    return traits().payload_bytes(spec(), extent, round);
  }
  virtual int64_t scratch_bytes(const core::Extent& extent) const = 0;  // of the encode of any round
  virtual int64_t round_bytes(const core::Extent& /*extent*/) const { return 0; }
  virtual int64_t state_bytes(const core::Extent& /*extent*/) const { return 0; }

  // Both may return before their work is done; it is done when the queue's next mark is reached. Memory is of the
  // queue's space. The spans and fields themselves are read before the call returns. Both throw only for a
  // programmer's error, such as memory of a wrong size.
  virtual void encode(const Encode& job, Queue& queue) const = 0;

  // out = (accumulate ? out : 0) + the sum of the decoded payloads, in one pass over `out`. Payloads are added in the
  // order given. Some compressors first add them up in runs of two or of four. The runs are always the same, so all
  // ranks that decode the same payloads have the same sums.
  virtual void decode(const Decode& job, Queue& queue) const = 0;

  // The same for several calls whose memory does not overlap, for buckets that are ready at the same time. A device
  // processes small calls together, since a launch costs as much as the work on about 10^5 elements.
  virtual void encode_all(std::span<const Encode> jobs, Queue& queue) const {
    for (const Encode& job : jobs) encode(job, queue);
  }
  virtual void decode_all(std::span<const Decode> jobs, Queue& queue) const {
    for (const Decode& job : jobs) decode(job, queue);
  }

  // The codec for lists of rows. It is null for compressors that have none and for all that work on a device, because
  // lists are on the host.
  virtual const RowCodec* rows() const { return nullptr; }

  // Describes the fault of the payload at that position, which a decode of that job rejected, by name of the field:
  // "payload 2 of 4: count is 0x9, not 0x5". It runs on the host and needs all memory of the job; the job's round and
  // state memory is garbage afterwards.
  virtual core::Error defect(const Decode& job, size_t position) const = 0;
};

// The table of this family (table.cc): one row per compressor. `none` is always the first.
struct CompressorRow {
  core::CompressorTraits traits;
  std::unique_ptr<Compressor> (*make)(const core::CompressorSpec& spec, const core::CompressorTraits& traits);
};
std::span<const CompressorRow> compressor_table();

// The traits of all rows, for policies and parsers.
core::TraitsTable known_traits();

// Makes the compressor of a spec. An unknown name or a parameter out of range is an error that lists the allowed
// values.
core::Result<std::unique_ptr<Compressor>> make_compressor(const core::CompressorSpec& spec);

}  // namespace gradtune::compress
