// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The contract of a compressor. It turns n fp32 gradient elements into a payload of fixed size and adds payloads back
// up. One object serves one spec ("topk:0.01"), holds no state, and may be called from any number of threads; what
// belongs to a bucket or to elements (payloads, scratch, residuals, state) is the caller's.
//
// Error feedback (Seide et al. 2014; Karimireddy et al., ICML 2019). With p = gradient + residual, the payload stands
// for scale * p, and what it misses is written to the next residual: error_scale * (scale * p - decode(payload)).
// Residual and next residual are different memory, so a step that must be undone is undone by not swapping them. The
// first encode of a program on N ranks has scale = 1/N, error_scale = N: what is decoded and summed over ranks is the
// average, and residuals stay in units of the unscaled gradient. A shard that was summed and is encoded again has scale
// = 1, error_scale = N and *adds* to its owner's next residual.
//
// Payloads: their size is fixed by spec and n, some need not be full (used_bytes). Opaque ones begin with a 16-byte
// header {magic and version, compressor id, n, count}, little endian; sections are 16-byte aligned; padding is zero.
// Decoders check header, counts, indices and scales before they use them and reject by name (I8); they write nothing
// outside of their output for any input. Summable ones are bare arrays of their wire type, of which a collective makes
// one.
//
// Rounds. Most compressors have one: encode, a collective, decode. With several, each round's encode takes the same
// gradient and residual, and the payload of the last one stands for scale * p; what a decode before the last makes of
// the ranks' payloads goes into the round's memory, where the rounds behind it find it. So all ranks find the same
// there. Only the last encode writes the next residual for good.
//
// State is what a compressor keeps of a bucket from step to step (a warm start, a threshold, momentum): bytes that are
// zero at first and whenever another strategy was put in force. Like residuals they are kept twice: a step reads one
// copy and writes all of the other by its last encode or decode, and is undone by not swapping them. A program's first
// use of a codec has state; where the same codec encodes again what was summed, its state is null.
//
// Randomness is counter-based: what an element draws is a function of Random and of its position in the gradient alone
// (random-inl.h), so it does not depend on buckets, threads or SIMD targets, and no state is kept.
//
// Determinism: the same bytes for every thread count and every SIMD target.
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

// What random numbers are made of, besides the element. All but `rank` is the same on all ranks; a compressor whose
// ranks have to draw alike leaves `rank` out.
struct Random {
  uint64_t seed = 0;  // of the job
  uint32_t step = 0;
  uint32_t rank = 0;
  uint32_t use = 0;  // another number for each use of the same position in one step, below 2^31
};

// What encode and decode of the same elements are told alike.
struct Work {
  std::span<const core::Matrix> matrices = {};  // among the elements, for compressors that need them
  Random random = {};                           // used by random compressors only, and so is
  int64_t first_element = 0;                    // the position of the first element in the whole gradient
  int64_t row = 0;  // elements that are zero or not together: the range is whole rows of so many; 0: not known
  int round = 0;
  // Aligned to 16 bytes, as is all memory here but that of floats.
  std::byte* round_memory = nullptr;  // round_bytes, from the first encode of a step to its last decode
  const std::byte* state = nullptr;   // state_bytes, or null
  std::byte* state_next = nullptr;    // null as state is
};

// What calls found, in memory of the queue's space: there when their work is done. Each call adds to it, so whoever
// gives it clears it first; calls whose work may go on at the same time have one each.
struct Verdict {
  // Encode: 1 when scale * p, or what the payload makes of it, has a non-finite element (fp16 ends at 65504, a mean may
  // overflow), or a sum of `summed` as large ones may have one. Decoders accept the payload all the same, so that no
  // rank fails before all have learned of it; the next residual is garbage that the caller must not use.
  uint32_t nonfinite = 0;
  // Decode: 1 + the position of a payload that can not be decoded, the first such one; 0: all could. `out` then holds
  // garbage inside its bounds.
  uint32_t rejected = 0;
  int64_t used_bytes = 0;  // encode: of its payload; in one with a fixed size, all
};

struct Encode {
  std::span<const float> gradient;    // n elements
  const float* residual = nullptr;    // n elements, or null: p = gradient
  float* residual_next = nullptr;     // n elements; null: the error is not kept, and there is no residual
  bool add_to_residual_next = false;  // add the error instead of storing it; then there is no residual either
  float scale = 1;
  float error_scale = 1;
  int summed = 1;  // of how many payloads like this one collectives will make one
  Work work = {};
  std::span<std::byte> payload;  // payload_bytes of the round; summable ones are aligned to their elements
  std::span<std::byte> scratch;  // at least scratch_bytes
  Verdict* verdict = nullptr;    // never null
};

struct Decode {
  std::span<const std::span<const std::byte>> payloads;  // at least one; aligned as in encode
  int summed = 1;                                        // how many payloads a collective made each of these of
  std::span<float> out;                                  // n elements, left alone before the last round
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

  // How a collective makes one of the summable payloads of a round; opaque payloads are bytes to it.
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

  // Both may return before their work is done: it is where the queue's next mark is. Memory is of the queue's space;
  // spans and fields themselves are read before the call returns. They throw for a programmer's error only, such as
  // memory of another size than was stated.
  virtual void encode(const Encode& job, Queue& queue) const = 0;

  // out = (accumulate ? out : 0) + the sum of the decoded payloads, in one pass over `out`. They are added in the order
  // given, by some compressors in runs of two or of four that are added up first: always the same ones, so that all who
  // decode the same payloads have the same sums.
  virtual void decode(const Decode& job, Queue& queue) const = 0;

  // The same for several calls, whose memory has nothing in common, of buckets that are ready at the same time. A
  // device takes small ones together: a launch costs as much as the work on some 10^5 elements.
  virtual void encode_all(std::span<const Encode> jobs, Queue& queue) const {
    for (const Encode& job : jobs) encode(job, queue);
  }
  virtual void decode_all(std::span<const Decode> jobs, Queue& queue) const {
    for (const Decode& job : jobs) decode(job, queue);
  }

  // How it makes payloads of lists of rows; null where it does not, and of all that work on a device: lists are on the
  // host.
  virtual const RowCodec* rows() const { return nullptr; }

  // What is wrong with the payload at that position, which a decode of that job rejected, by name of the field:
  // "payload 2 of 4: count is 0x9, not 0x5". On the host, with all memory of the job there; its round and state memory
  // is garbage afterwards.
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

// The compressor of a spec. An unknown name or a parameter out of range is an error that lists what is allowed.
core::Result<std::unique_ptr<Compressor>> make_compressor(const core::CompressorSpec& spec);

}  // namespace gradtune::compress
