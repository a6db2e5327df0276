// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// An option is a short program: a list of a few kinds of steps that takes a bucket's local gradient to the average over
// all ranks. Plain data: comparable, hashable, printable, parsable. The interpreter (engine/exec), the cost function,
// the timeline and the printer all walk the same steps.
//
// What the steps do to a bucket of n elements on N ranks:
//   encode      gradient -> payload. Before an all_to_all the bucket is encoded as N shards, one payload for each owner
//   all_reduce  sums over ranks in place: of the gradient itself, or of a summable payload
//   all_to_all  every rank receives the N payloads of the shard that it owns
//   all_gather  every rank receives every rank's payload: whole buckets to be summed, or, after the shard was reduced,
//               the shards to be put side by side
//   decode      payloads -> gradient (of the bucket, or of the owned shard), summed in fp32
// The printed form names codecs, then steps: "bf16: encode@device all_to_all decode@device encode@device all_gather
// decode@device"; a step that uses another codec than the first says so: "encode@host#1".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/compressor.h"
#include "engine/core/result.h"

namespace gradtune::core {

// Where codec work runs. `device`: where the gradient lives (on a CPU job the thread that runs backward), fast, delays
// computation. `host`: oneTBB workers, delays communication only.
enum class Place : uint8_t { device, host };

struct Step {
  enum class Kind : uint8_t { encode, decode, all_reduce, all_to_all, all_gather } kind;
  Place place = Place::device;  // encode, decode
  uint8_t codec = 0;            // encode, decode: position in Option::codecs

  bool operator==(const Step&) const = default;
};

constexpr bool is_collective(Step::Kind kind) { return kind != Step::Kind::encode && kind != Step::Kind::decode; }

std::string_view to_string(Place place);
std::string_view to_string(Step::Kind kind);

struct Option {
  std::vector<CompressorSpec> codecs;
  std::vector<Step> steps;

  bool operator==(const Option&) const = default;
};

std::string to_string(const Option& option);

// The inverse of to_string. Codec names are checked against `known`; an unknown word is an error that lists what is
// allowed.
Result<Option> parse_option(std::string_view text, const std::vector<CompressorTraits>& known);

// "topk:0.01" -> spec, with the default where no parameter is given; refuses unknown names and values out of range.
Result<CompressorSpec> parse_compressor(std::string_view text, const std::vector<CompressorTraits>& known);

// The named families of programs; `place` applies to all their encodes and decodes.
Option plain_all_reduce();                                            // sums gradients in their own dtype
Option encoded_all_reduce(const CompressorSpec& codec, Place place);  // summable payloads only
Option two_step(const CompressorSpec& codec, Place place);            // all-to-all, decode-sum-encode, all-gather
Option gather_payloads(const CompressorSpec& codec, Place place);     // all-gather, decode N payloads

}  // namespace gradtune::core
