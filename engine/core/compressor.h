// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The description of a compressor that planners and the interpreter use, as plain data: its name with parameters
// (CompressorSpec) and its traits. The compressors themselves, and the only table of them, are in engine/compress.
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

// The changes to a training that gradtune is allowed to make. `exact`: sums in fp32 and nothing lossy. `half`: also
// 16 bits on the wire. `lossy`: also the compressors of the default list and those that the user names. The values
// are ordered: a larger one allows more.
enum class Fidelity : uint8_t { exact, half, lossy };

std::string_view to_string(Fidelity fidelity);
Result<Fidelity> parse_fidelity(std::string_view text);  // "exact" | "half" | "lossy"

// The use that optimizers make of gradients, which decides what compression a training bears. `sgd`: updates
// proportional to gradients or to their running mean. `adaptive`: updates divided by statistics of past gradients
// (Adam and its relatives), and every optimizer that is not known to be SGD.
enum class OptimizerFamily : uint8_t { sgd, adaptive };

// The jobs in which a compressor is used at its fidelity without being named by the user: those for which our
// accuracy table (tests/bench/results/README.md) admits it.
enum class Listed : uint8_t { never, for_sgd, for_adaptive, always };

// A compressor with its parameter as users write it: "bf16", "topk:0.01", "efsignsgd:64".
struct CompressorSpec {
  std::string name;
  double parameter = 0;  // meaning and range are in the traits; the default where the user gave none

  bool operator==(const CompressorSpec&) const = default;
};

std::string to_string(const CompressorSpec& spec);  // "topk:0.01"; the parameter is left out where it is 0

// Whole rows of a matrix: rows x columns elements from `begin` on.
struct Matrix {
  int64_t begin = 0, rows = 0, columns = 0;

  int64_t end() const { return begin + rows * columns; }
  bool operator==(const Matrix&) const = default;
};

// Elements that are encoded as one: their number, and the matrices among them, ascending. Elements outside of the
// matrices count as vectors.
struct Extent {
  // By default all elements are vectors, and dense.
  // NOLINTNEXTLINE(google-explicit-constructor)
  Extent(int64_t elements = 0, std::span<const Matrix> among = {}, const Content& what = {})
      : numel(elements), matrices(among), content(what) {}

  int64_t numel;
  std::span<const Matrix> matrices;
  Content content;
};

// The whole rows of the matrices that lie within the elements [begin, begin + length); positions count from `begin`.
std::vector<Matrix> matrices_within(std::span<const Matrix> matrices, int64_t begin, int64_t length);

// The work of a compressor on a host, as far as it is known without a measurement; host_bytes() follows from it.
struct HostWork {
  // The work besides passing memory, if any: drawing random bits, or finding the largest elements.
  enum class Limit : uint8_t { memory, random, selection } limit = Limit::memory;

  // The number of fp32 arrays that one pass has to move between memory and caches, besides the payload. They are the
  // reads of encode, the reads and writes with error feedback, and the arrays of state, each of which is read and
  // written. Decode writes one array.
  int reads = 1, feedback_reads = 2, feedback_writes = 1, state_arrays = 0;

  bool rounds_at_random = false;  // encode draws random bits for each element
};

// norm(p - decode(encode(p))) / norm(p), the median of 32 steps. The largest value among the trainings that admit a
// compressor (tests/bench/results), by the family of their optimizer. The values do not cover gradients of which the
// compressor loses far more. 0: not measured.
struct SeenError {
  double sgd = 0, adaptive = 0;

  // Uses the value of the other family where the compressor is not listed for this one.
  double with(OptimizerFamily family) const {
    const double of_family = family == OptimizerFamily::sgd ? sgd : adaptive;
    return of_family > 0 ? of_family : std::max(sgd, adaptive);
  }
};

struct CompressorTraits {
  std::string_view name;
  std::string_view summary;  // one line for users

  Fidelity fidelity;          // the least fidelity that admits it
  Listed listed;              // used without being named
  SeenError seen_error = {};  // at parameter_default
  // The number of steps that jobs with an adaptive optimizer take before the compressor runs, as in the trainings
  // that admit it for them. Second moments should begin with those of dense gradients (Tang et al., 1-bit Adam, ICML
  // 2021, section 4).
  int dense_first = 0;
  bool summable;        // a collective may add payloads up; otherwise they are gathered and decoded
  bool error_feedback;  // the encoding error is kept in the residual and sent later

  // The parameter, if any: `parameter_name` is empty for a compressor that has none. If the step is > 0, the
  // parameter is a multiple of it.
  std::string_view parameter_name;
  double parameter_default = 0, parameter_min = 0, parameter_max = 0, parameter_step = 0;

  // The search range: settings that policies choose from where the user leaves the choice to them ("topk:*"). It
  // includes the default and runs from the setting that sends most to the one that sends least.
  std::span<const double> parameter_search = {};

  // Rounds of encode, collective and decode. Compressors of several rounds send summable payloads.
  int rounds = 1;
  bool needs_matrices = false;  // treats matrices as such, and is given their positions
  bool takes_rows = false;      // leaves out zeros; also makes payloads of lists of a matrix' rows

  // Bytes of the payload of a round; they depend on spec, extent and round, never on the data.
  int64_t (*payload_bytes)(const CompressorSpec& spec, const Extent& extent, int round);

  // For payloads that need not be full: the number of bytes used, from the first on, as the payload itself says. It
  // never exceeds the size of the payload, even if the payload is corrupt. Encoders leave the remaining bytes
  // untouched, and exchanges leave them out. Null: all bytes are used.
  int64_t (*used_bytes)(std::span<const std::byte> payload) = nullptr;
  double usual_use = 1;  // the share of payload_bytes that gradients use, until it is measured
  // For compressors that take rows: the bytes used for `numel` elements in rows of `row` elements, if `share` of the
  // rows are not zero.
  int64_t (*sparse_bytes)(const CompressorSpec& spec, int64_t numel, int64_t row, double share) = nullptr;

  // A NaN or Inf of an element appears in the payload, and in sums of payloads, as it does in sums of numbers, and
  // no other element changes because of it. So a bucket can be left as it is if its gradient is not finite.
  bool carries_nonfinite = false;

  // True if the payload holds a smaller range than fp32, so that finite numbers may become infinite in it.
  bool narrow = false;

  bool replaces_momentum = false;  // keeps a momentum of its own, so the optimizer must have none

  // The largest number of ranks whose payloads can be added up; null: no limit.
  int (*most_ranks)(const CompressorSpec& spec) = nullptr;

  HostWork host = {};
};

// All known compressors, in a table that outlives its users.
using TraitsTable = std::span<const CompressorTraits>;

// The default list of a fidelity: those of the known compressors that it admits, with their default parameters,
// "none" first.
std::vector<CompressorSpec> default_list(Fidelity fidelity, OptimizerFamily family, TraitsTable known);

// INT_MAX if there is no limit.
int most_ranks(const CompressorTraits& traits, const CompressorSpec& spec);

// The traits of that compressor; null if it is not among the known ones.
const CompressorTraits* traits_of(const CompressorSpec& spec, TraitsTable known);

// The bytes of all rounds together, and the part of them that is usually used.
int64_t payload_bytes(const CompressorTraits& traits, const CompressorSpec& spec, const Extent& extent);
int64_t usual_bytes(const CompressorTraits& traits, const CompressorSpec& spec, const Extent& extent);

enum class HostOperation : uint8_t { encode, encode_feedback, decode };

// A lower bound of the bytes that pass between memory and caches if nothing is cached. `payloads` is the number that
// a decode reads, each of the size of the last round.
double host_bytes(const CompressorTraits& traits, const CompressorSpec& spec, const Extent& extent,
                  HostOperation operation, int payloads = 1);

// Returns an error that lists the allowed values if the traits do not admit the parameter.
Status check_parameter(const CompressorTraits& traits, double parameter);

}  // namespace gradtune::core
