// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// An option is a short program: a list of steps that takes a bucket's local gradient to the average over all ranks.
// Plain data: comparable, hashable, printable, parsable. The interpreter (engine/exec), the cost function, the
// timeline and the printer all walk the same steps.
//
// The steps work on a group of g ranks (Level): all ranks, those of a node, one of each node, or those along a
// dimension of a mesh.
// - encode: gradient -> payloads. One for all that this rank holds, or, before exchanges that cut it, one for each
//   part.
// - decode: payloads -> gradient, summed in fp32.
// - all_reduce: sums over the group, in place; sums the gradient itself, or a summable payload.
// - reduce_scatter: sums over the group; every rank keeps its shard.
// - all_to_all: every rank receives the group's payloads of its shard.
// - reduce, gather: sums, or payloads, at one rank of the group. The others have nothing until the broadcast.
// - all_gather: every rank receives the group's shards, which are put side by side, or the group's payloads.
// - broadcast: sends from the rank that has the data.
//
// A compressor of several rounds has an encode, an all_reduce and a decode in each of them, one round after the
// other. A decode before the last round does not yield a gradient but the input of the next round.
//
// A bucket is at first the local gradient of every rank and must end as the average, whole and on every rank.
// Payloads may pass several exchanges before they are decoded. The decision tree (policies/space/decision_tree.h)
// builds its programs from these steps.
//
// The printed form names codecs, then steps: "bf16: encode@device all_to_all decode@device encode@device all_gather
// decode@device". Three properties are printed only if they differ from the default:
// - the codec, if it is not the first ("encode@host#1"),
// - the round, if it is not the first ("encode@host.1", "encode@host#1.1"), and
// - the level of a collective that is not over all ranks ("all_gather@inter", "all_gather@dim0").
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/compressor.h"
#include "engine/core/result.h"
#include "engine/core/round_up.h"
#include "engine/core/topology.h"

namespace gradtune::core {

// The place of codec work. `device`: where the gradient lives (on a CPU job, the thread that runs backward); it is
// fast, but delays computation. `host`: oneTBB workers; it delays communication only.
enum class Place : uint8_t { device, host };

struct Step {
  enum class Kind : uint8_t {
    encode,
    decode,
    all_reduce,
    reduce_scatter,
    all_gather,
    all_to_all,
    reduce,
    broadcast,
    gather,
  } kind;
  Place place = Place::device;  // encode, decode
  Level level = Level::flat;    // collectives
  uint8_t codec = 0;            // encode, decode: position in Option::codecs
  uint8_t round = 0;            // encode, decode: the round of the codec

  bool operator==(const Step&) const = default;
};

// The traits of a kind of step. All code that treats collectives alike (sizes, costs, data movement without a
// network, names) reads these rows. So a new kind is a row here, with code only where it really differs: in the
// interpreter (engine/exec/bucket_compiler.cc) and in the calls of libraries (hooks/c10d/communicator.cc).
struct StepTraits {
  Step::Kind kind;
  std::string_view name;
  bool is_collective = true;

  // The bytes that the busiest link carries in one direction over a group of `group` ranks. `bytes`: the data of one
  // rank, or one part of it if inputs have parts.
  int64_t (*link_bytes)(int64_t bytes, int group) = nullptr;
  int messages = 1;          // one after another, for each other rank of the group
  bool is_pairwise = false;  // each two ranks have a message for each other, and all are sent at once

  bool adds_up = false;           // sums the ranks' data; other collectives only move it
  bool is_in_place = false;       // input and output of a rank are the same memory, of the same size
  bool has_input_parts = false;   // a rank's input has a part for each rank, and it ends with its own part
  bool has_output_parts = false;  // a rank ends with the data of each rank
  enum class Root : uint8_t { none, receives, sends } root = Root::none;  // one rank is special

  bool takes_gradients = false, takes_payloads = false;  // from the steps before it
};

// One row for each kind, in the order of the enumeration.
std::span<const StepTraits> step_table();
const StepTraits& traits_of(Step::Kind kind);

inline bool is_collective(Step::Kind kind) { return traits_of(kind).is_collective; }

// The bytes that the busiest link carries in one direction for a collective over a group of that size, and the
// number of messages one after another, by the usual ring and pairwise algorithms. `bytes`: the data of one rank, or
// one part of it for reduce_scatter and all_to_all.
int64_t link_bytes(Step::Kind collective, int64_t bytes, int group);
int messages(Step::Kind collective, int group);

// The number of these messages whose travel times add up; pairwise exchanges send all messages at once.
int travels(Step::Kind collective, int group);

// The layout of data in programs. A bucket is padded so that its shards are equally long and multiples of 16
// elements. A payload is padded, unless it is summed, so that the next one begins at a multiple of 16 bytes.
constexpr int64_t padded_to_shards(int64_t numel, int shards) { return round_up(numel, int64_t{16} * shards); }
constexpr int64_t aligned_payload(int64_t bytes) { return round_up(bytes, 16); }

std::string_view to_string(Place place);
std::string to_string(Level level);
std::string_view to_string(Step::Kind kind);

struct Option {
  std::vector<CompressorSpec> codecs;
  std::vector<Step> steps;

  bool operator==(const Option&) const = default;
};

int collectives_of(const Option& option);
bool uses_levels(const Option& option);               // intra or inter
bool fits(const Option& option, const Ranks& ranks);  // true if the ranks have the levels of all its collectives
bool uses_host(const Option& option);                 // for any encode or decode

std::string to_string(const Option& option);

// The inverse of to_string. Codec names are checked against `known`; an unknown word is an error that lists what is
// allowed.
Result<Option> parse_option(std::string_view text, TraitsTable known);

// "topk:0.01" -> spec, with the default where no parameter is given; refuses unknown names and values out of range.
Result<CompressorSpec> parse_compressor(std::string_view text, TraitsTable known);

// As parse_compressor, but "topk:*" yields all specs of the search range.
Result<std::vector<CompressorSpec>> parse_compressors(std::string_view text, TraitsTable known);

// The named families of programs; `place` applies to all their encodes and decodes.
Option plain_all_reduce();  // sums gradients in their own dtype
Option encoded_all_reduce(const CompressorSpec& codec, Place place, int rounds = 1);  // summable payloads only
Option two_step(const CompressorSpec& codec, Place place);         // all-to-all, decode-sum-encode, all-gather
Option gather_payloads(const CompressorSpec& codec, Place place);  // all-gather, decode N payloads

// All-gathers and decodes along one dimension of the mesh of all ranks after the other, each time the sums so far.
// For a power of two it is recursive doubling (SSAR_Recursive_double of SparCML, SC 2019): four ranks end with (r0 +
// r1) + (r2 + r3), all of them with the same bits. Other numbers of ranks have larger dimensions as well (six end
// with (r0 + r1 + r2) + (r3 + r4 + r5)). The usual way for them is to fold the ranks beyond a power of two into
// others; that takes two more rounds, and in the last of them the sum of all ranks travels. For a prime number of
// ranks it is gather_payloads.
Option recursive_doubling(const CompressorSpec& codec, Place place, int ranks);

}  // namespace gradtune::core
