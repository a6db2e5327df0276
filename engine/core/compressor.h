// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What planners and interpreter know of a compressor, as plain data: its name with parameters (CompressorSpec) and its
// traits. The compressors themselves, and the one table of them, are in engine/compress.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/gradient_table.h"
#include "engine/core/result.h"

namespace gradtune::core {

// How far gradtune may change what is trained: exact, sums in fp32 and nothing lossy; half, also 16 bits on the wire;
// lossy, also the compressors of the default list and those that the user names. Ordered: a larger value allows more.
enum class Fidelity : uint8_t { exact, half, lossy };

std::string_view to_string(Fidelity fidelity);
Result<Fidelity> parse_fidelity(std::string_view text);  // "exact" | "half" | "lossy"

// What optimizers make of gradients, which decides what compression a training bears: moves in proportion to them or to
// their running mean (SGD), or moves that are divided by what past gradients were (Adam and its relatives, and whatever
// is not known to be SGD).
enum class OptimizerFamily : uint8_t { sgd, adaptive };

// In whose jobs a compressor is used at its fidelity without being named: where our accuracy table admits it
// (tests/bench/results/README.md).
enum class Listed : uint8_t { never, for_sgd, for_adaptive, always };

// A compressor with its parameter as users write it: "bf16", "topk:0.01", "efsignsgd:64".
struct CompressorSpec {
  std::string name;
  double parameter = 0;  // meaning and range are in the traits; equals the default where the user gave none

  bool operator==(const CompressorSpec&) const = default;
};

std::string to_string(const CompressorSpec& spec);  // "topk:0.01"; the parameter is left out where it is 0

// Whole rows of a matrix: rows x columns elements from `begin` on.
struct Matrix {
  int64_t begin = 0, rows = 0, columns = 0;

  int64_t end() const { return begin + rows * columns; }
  bool operator==(const Matrix&) const = default;
};

// Elements that are encoded as one: how many there are, and the matrices among them, ascending. What is in no matrix
// counts as vectors.
struct Extent {
  // Of vectors alone where nothing is said of matrices, and dense.
  // NOLINTNEXTLINE(google-explicit-constructor)
  Extent(int64_t elements = 0, std::span<const Matrix> among = {}, const Content& what = {})
      : numel(elements), matrices(among), content(what) {}

  int64_t numel;
  std::span<const Matrix> matrices;
  Content content;
};

// Those among the elements [begin, begin + length), with what they have of whole rows there; positions count from
// `begin` on.
std::vector<Matrix> matrices_within(std::span<const Matrix> matrices, int64_t begin, int64_t length);

// What a compressor has to do on a host, as far as that is known without a measurement: host_bytes follow from it.
struct HostWork {
  // What it has to do besides passing memory, if anything: to draw random bits, or to find the largest elements.
  enum class Limit : uint8_t { memory, random, selection } limit = Limit::memory;

  // fp32 arrays that have to pass between memory and caches, besides the payload: of encode; with error feedback; and
  // those of the state, each of which is read and written. One pass needs as many as this. Decode writes one.
  int reads = 1, feedback_reads = 2, feedback_writes = 1, state_arrays = 0;

  bool rounds_at_random = false;  // encode draws random bits for each element
};

// norm(p - decode(encode(p))) / norm(p), the median of 32 steps: the largest in all of the trainings that admit a
// compressor (tests/bench/results), by the family of their optimizer. These say nothing of gradients of which it loses
// far more. 0: not measured.
struct SeenError {
  double sgd = 0, adaptive = 0;

  // Of the other family where a compressor is not listed for this one.
  double with(OptimizerFamily family) const {
    const double of_family = family == OptimizerFamily::sgd ? sgd : adaptive;
    return of_family > 0 ? of_family : std::max(sgd, adaptive);
  }
};

struct CompressorTraits {
  std::string_view name;
  std::string_view summary;  // one line for users

  Fidelity fidelity;          // the least fidelity that admits it
  Listed listed;              // without being named
  SeenError seen_error = {};  // at parameter_default
  // Steps that jobs with an adaptive optimizer take before it runs, as in the trainings that admit it for them:
  // second moments should begin with those of dense gradients (Tang et al., 1-bit Adam, ICML 2021, section 4).
  int dense_first = 0;
  bool summable;        // payloads may be added by a collective; otherwise they are gathered and decoded
  bool error_feedback;  // the encoding error is kept in the residual and sent later

  // The one parameter, if any: `parameter_name` is empty for a compressor without. A step > 0 says that it is a
  // multiple of that.
  std::string_view parameter_name;
  double parameter_default = 0, parameter_min = 0, parameter_max = 0, parameter_step = 0;

  // The search range: settings that policies choose from where the user leaves it to them ("topk:*"), the default among
  // them, from the one that sends most to the one that sends least.
  std::span<const double> parameter_search = {};

  // Encodes, collectives and decodes that it takes. What several rounds send is summable.
  int rounds = 1;
  bool needs_matrices = false;  // treats matrices as such, and is told of them
  bool takes_rows = false;      // leaves out zeros; also makes payloads of lists of a matrix' rows

  // Bytes of the payload of a round: fixed by spec, extent and round, never by the data.
  int64_t (*payload_bytes)(const CompressorSpec& spec, const Extent& extent, int round);

  // Of payloads that need not be full: how many bytes of one are used, from the first on, as it says itself; never more
  // than it has, whatever it says. Encoders leave the rest as it is, and exchanges leave it out. Null: all are.
  int64_t (*used_bytes)(std::span<const std::byte> payload) = nullptr;
  double usual_use = 1;  // the share of payload_bytes that is used of gradients, until it was measured
  // Of those that take rows: bytes used of so many elements in rows of `row`, of which that share is there.
  int64_t (*sparse_bytes)(const CompressorSpec& spec, int64_t numel, int64_t row, double share) = nullptr;

  // A NaN or Inf of an element is in the payload and in sums of payloads what it is in sums of numbers, and no other
  // element is any different for it. So a bucket can be left as it is where its gradient is not finite.
  bool carries_nonfinite = false;

  // Holds less than fp32 does: numbers that are finite may not be in the payload.
  bool narrow = false;

  bool replaces_momentum = false;  // has that of the optimizer, which must have none of its own

  // Of how many ranks payloads can be added up; null: of any number.
  int (*most_ranks)(const CompressorSpec& spec) = nullptr;

  HostWork host = {};
};

// All compressors that there are, in a table that outlives whoever looks at it.
using TraitsTable = std::span<const CompressorTraits>;

// The default list of a fidelity: those of the known ones, with their default parameters, "none" first.
std::vector<CompressorSpec> default_list(Fidelity fidelity, OptimizerFamily family, TraitsTable known);

// INT_MAX where there is no limit.
int most_ranks(const CompressorTraits& traits, const CompressorSpec& spec);

// Those of that compressor among the known ones; null where it is not known.
const CompressorTraits* traits_of(const CompressorSpec& spec, TraitsTable known);

// Of all rounds together; of what is usually used of it.
int64_t payload_bytes(const CompressorTraits& traits, const CompressorSpec& spec, const Extent& extent);
int64_t usual_bytes(const CompressorTraits& traits, const CompressorSpec& spec, const Extent& extent);

enum class HostOperation : uint8_t { encode, encode_feedback, decode };

// Bytes that pass between memory and caches where nothing is cached, at least; `payloads` of a decode, which is that of
// the last round.
double host_bytes(const CompressorTraits& traits, const CompressorSpec& spec, const Extent& extent,
                  HostOperation operation, int payloads = 1);

// An error that says what is allowed where the traits do not admit the parameter.
Status check_parameter(const CompressorTraits& traits, double parameter);

}  // namespace gradtune::core
