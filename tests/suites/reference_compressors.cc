// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/suites/reference_compressors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "engine/core/philox.h"

namespace gradtune::suites {
namespace {

Reference each_rounded(std::span<const float> p, float scale, double (*round)(double)) {
  Reference reference;
  for (float value : p) reference.decoded.push_back(round(double{scale * value}));
  return reference;
}

Reference largest(std::span<const float> p, float scale, double density) {
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return std::abs(p[a]) > std::abs(p[b]); });
  const double exact = density * static_cast<double>(p.size());
  const double whole = std::round(exact);
  order.resize(static_cast<size_t>(std::abs(exact - whole) < 1e-6 && whole > 0 ? whole : std::ceil(exact)));
  Reference reference{.decoded = std::vector<double>(p.size())};
  for (size_t i : order) reference.decoded[i] = round_to_bf16(double{scale * p[i]});
  return reference;
}

// The random words of an element that all ranks share.
std::array<uint32_t, 4> shared_words(const compress::Random& random, uint64_t element) {
  return core::philox4x32({static_cast<uint32_t>(element), random.step, static_cast<uint32_t>(element >> 32),
                           uint32_t{1} << 31 | random.use},
                          {static_cast<uint32_t>(random.seed), static_cast<uint32_t>(random.seed >> 32)});
}

// One element of each of k strata, whose begins are drawn.
Reference drawn(std::span<const float> p, double density, const EncodeCase& job) {
  Reference reference{.decoded = std::vector<double>(p.size()), .draws = Draws::shared};
  const auto words_of = [&](size_t position) {
    const uint64_t element = static_cast<uint64_t>(job.first_element) + position;
    return shared_words(job.random, element);
  };
  const size_t n = p.size();
  if (n == 0) return reference;
  const auto k = std::max<size_t>(1, static_cast<size_t>(std::ceil(density * static_cast<double>(n) - 1e-6)));
  const auto first = words_of(0);
  const uint64_t start = (uint64_t{first[1]} << 32 | first[2]) % n;
  std::array<uint32_t, 4> words{};
  for (size_t stratum = 0, begin = 0; stratum < k; ++stratum) {
    const size_t size = n / k + (stratum < n % k ? 1 : 0);
    if (stratum % 4 == 0) words = words_of(begin + 1);
    const double share = std::ldexp(static_cast<double>(words[stratum % 4]), -32);
    const size_t element = (start + begin + static_cast<size_t>(share * static_cast<double>(size))) % n;
    reference.decoded[element] = double{job.scale * p[element]};
    begin += size;
  }
  return reference;
}

// Above and below zero (-0 counts as below), all elements of a block become the mean magnitude of their side.
Reference sides(std::span<const float> p, float scale, size_t block) {
  Reference reference{.decoded = {}, .tolerance = 1e-6};
  for (size_t begin = 0; begin < p.size(); begin += block) {
    const std::span<const float> values = p.subspan(begin, std::min(block, p.size() - begin));
    double sums[2] = {}, counts[2] = {};
    for (float value : values) {
      sums[std::signbit(value)] += double{value};
      ++counts[std::signbit(value)];
    }
    for (float value : values) {
      const bool side = std::signbit(value);
      reference.decoded.push_back(double{scale} * sums[side] / counts[side]);
    }
  }
  return reference;
}

// Votes have 12 bits of precision.
Reference votes(std::span<const float> p, float scale) {
  Reference reference{.decoded = {}, .tolerance = 0x1p-11, .sizeless = true};
  for (float value : p) reference.decoded.push_back(std::signbit(value) ? -scale : scale);
  return reference;
}

Reference signs(std::span<const float> p, float scale, size_t block) {
  Reference reference{.decoded = {}, .tolerance = 1e-6};
  for (size_t begin = 0; begin < p.size(); begin += block) {
    const std::span<const float> values = p.subspan(begin, std::min(block, p.size() - begin));
    double sum = 0;
    for (float value : values) sum += std::abs(double{value});
    const double mean = double{scale} * sum / static_cast<double>(values.size());
    for (float value : values) reference.decoded.push_back(std::signbit(value) ? -mean : mean);
  }
  return reference;
}

// --- Blocks of codes -------------------------------------------------------------------------------------------------

// The divisor of a block's elements, and the code for a quotient; `random` is in (0, 1).
struct BlockCodes {
  size_t block;
  bool euclidean = false;
  bool unbiased = false;
  std::function<float(float norm)> unit;
  std::function<double(float x, double random)> value;
};

// Relative error of the square root of a sum of 128 squares in fp32.
constexpr double kErrorOfNorm = 5e-7;

Reference block_codes(const BlockCodes& codes, std::span<const float> p, const EncodeCase& job) {
  const double error_of_norm = codes.euclidean ? kErrorOfNorm : 0;
  Reference reference{.decoded = {},
                      .also = {},
                      .tolerance = 2e-7 + error_of_norm,
                      .draws = codes.unbiased ? Draws::own_by_element : Draws::none,
                      .unbiased = codes.unbiased};
  for (size_t begin = 0; begin < p.size(); begin += codes.block) {
    const std::span<const float> values = p.subspan(begin, std::min(codes.block, p.size() - begin));
    double largest = 0, squares = 0;
    for (float value : values) {
      largest = std::max(largest, std::abs(double{value}));
      squares += double{value} * value;
    }
    const auto norm = static_cast<float>((codes.euclidean ? std::sqrt(squares) : largest) * job.scale);
    const float unit = codes.unit(norm);
    const bool sent = unit >= std::numeric_limits<float>::min();
    for (size_t i = 0; i < values.size(); ++i) {
      const uint64_t element = static_cast<uint64_t>(job.first_element) + begin + i;
      const double random = (reference_random(job.random, element) + 0.5) / 65536;
      const float x = sent ? (values[i] * job.scale) * (1 / unit) : 0;
      const auto decoded_of = [&](double quotient) {
        return sent ? codes.value(static_cast<float>(quotient), random) * unit : 0;
      };
      reference.decoded.push_back(decoded_of(x * (1 - error_of_norm)));
      if (codes.euclidean) reference.also.push_back(decoded_of(x * (1 + error_of_norm)));
    }
  }
  return reference;
}

// Rounds to one of the two neighbouring integers: x has this many places behind the point, and as many last bits of
// the draw's 16 are used.
double rounded_at_random(double x, double draw, int places = 15) {
  const double one = std::ldexp(1.0, places);
  return std::floor((std::nearbyint(x * one) + std::fmod(std::floor(draw * 65536), one)) / one);
}

// Integers from -levels to levels.
BlockCodes integers(size_t block, int levels, bool random) {
  const auto limit = static_cast<double>(levels);
  return {.block = block,
          .unbiased = random,
          .unit = [levels](float norm) { return norm / static_cast<float>(levels); },
          .value =
              [limit, random](float x, double draw) {
                const double rounded = random ? rounded_at_random(x, draw) : std::nearbyint(x);
                return std::clamp(rounded, -limit, limit);
              }};
}

// The nearest integers, in units that are rounded up to 16 bits.
BlockCodes integers_of_few_bits(size_t block, int bits) {
  const int levels = (1 << (bits - 1)) - 1;
  BlockCodes codes = integers(block, levels, false);
  codes.unit = [levels](float norm) {
    const float unit = norm / static_cast<float>(levels);
    if (unit == 0) return unit;
    const auto place = std::ldexp(1.0, std::max(std::ilogb(unit), -126) - 7);
    return static_cast<float>(std::ceil(unit / place) * place);
  };
  return codes;
}

BlockCodes qsgd(int bits) {
  BlockCodes codes = integers(128, (1 << (bits - 1)) - 1, true);
  codes.euclidean = true;
  if (bits > 1) return codes;
  codes.unit = [](float norm) { return norm * 2; };
  codes.value = [](float x, double draw) { return rounded_at_random(x + 0.5, draw) >= 1 ? 0.5 : -0.5; };
  return codes;
}

BlockCodes floats(size_t block, int precision_bits, int min_place, double largest) {
  return {.block = block,
          .unit = [largest](float norm) { return norm / static_cast<float>(largest); },
          .value =
              [=](float x, double) {
                return std::clamp(round_to_format(x, precision_bits, min_place, HUGE_VAL), -largest, largest);
              }};
}

// The unit is the power of two above the norm, and its powers go down to 2^-126; zero is below them.
BlockCodes powers() {
  return {.block = 1024,
          .unbiased = true,
          .unit = [](float norm) { return norm == 0 ? 0 : std::ldexp(1.0F, std::max(std::ilogb(norm) + 1, -126)); },
          .value =
              [](float x, double draw) {
                const bool tiny = std::abs(x) < 0x1p-126F;
                const double lower = tiny ? 0 : std::ldexp(1.0, std::ilogb(x));
                const double step = tiny ? 0x1p-126 : lower;
                const double chosen = (std::abs(x) - lower) / step + draw >= 1 ? lower + step : lower;
                return std::copysign(chosen, x);
              }};
}

// --- Rotations -------------------------------------------------------------------------------------------------------

constexpr size_t kRotated = 1024;

// Uses the definition of the Hadamard matrix as a power of {{1, 1}, {1, -1}}.
template <class Number>
void hadamard(std::vector<Number>& x) {
  for (size_t stride = 1; stride < x.size(); stride *= 2) {
    for (size_t i = 0; i < x.size(); ++i) {
      if ((i & stride) != 0) continue;
      const Number a = x[i], b = x[i + stride];
      x[i] = a + b;
      x[i + stride] = a - b;
    }
  }
}

// Blocks, rotated and rounded at random to levels + 1 values from -t to t.
Reference rotated(std::span<const float> p, int levels, const EncodeCase& job) {
  Reference reference{.decoded = {}, .tolerance = 1e-6, .draws = Draws::own_by_element};
  for (size_t begin = 0; begin < p.size(); begin += kRotated) {
    const std::span<const float> values = p.subspan(begin, std::min(kRotated, p.size() - begin));
    std::vector<double> signs(kRotated);
    for (size_t i = 0; i < kRotated; ++i) {
      const uint64_t element = static_cast<uint64_t>(job.first_element) + begin + i / 128 * 4;
      const auto words = shared_words(job.random, element);
      signs[i] = (words[i / 32 % 4] >> i % 32 & 1) != 0 ? -1 : 1;
    }
    double squares = 0;
    std::vector<float> x(kRotated);
    for (size_t i = 0; i < values.size(); ++i) {
      squares += double{values[i]} * values[i];
      x[i] = (values[i] * job.scale) * static_cast<float>(signs[i] / 32);
    }
    hadamard(x);
    const auto norm = static_cast<float>(std::sqrt(squares) * job.scale);
    const float clamp = norm * ((2 + static_cast<float>(levels) / 64) / 32);
    const float unit = 2 * clamp / static_cast<float>(levels);
    std::vector<double> chosen(kRotated);
    for (size_t i = 0; i < kRotated && unit >= std::numeric_limits<float>::min(); ++i) {
      const uint64_t element = static_cast<uint64_t>(job.first_element) + begin + i;
      const double draw = (reference_random(job.random, element) + 0.5) / 65536;
      const float above = std::clamp((x[i] + clamp) * (1 / unit), 0.0F, static_cast<float>(levels));
      const double code = rounded_at_random(above, draw, 16);
      chosen[i] = code * double{unit} - double{clamp};
    }
    hadamard(chosen);
    for (size_t i = 0; i < values.size(); ++i) reference.decoded.push_back(chosen[i] * signs[i] / 32);
    reference.absolute_tolerance = std::max(reference.absolute_tolerance, 1e-6 * double{norm});
  }
  return reference;
}

// --- Matrices --------------------------------------------------------------------------------------------------------

using Columns = std::vector<std::vector<double>>;

// An orthonormal basis of their span.
void orthonormalise(Columns& columns) {
  const auto dot = [](const auto& a, const auto& b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); };
  for (size_t j = 0; j < columns.size(); ++j) {
    const double before = std::sqrt(dot(columns[j], columns[j]));
    for (size_t k = 0; k < 2 * j; ++k) {
      const std::vector<double>& other = columns[k % j];
      const double factor = dot(columns[j], other);
      for (size_t i = 0; i < other.size(); ++i) columns[j][i] -= factor * other[i];
    }
    const double left = std::sqrt(dot(columns[j], columns[j]));
    for (double& value : columns[j]) value = left > 1e-6 * before ? value / left : 0;
  }
}

// The columns of Q that a step starts with.
Columns start_of(const core::Matrix& matrix, size_t rank, size_t q_at, const EncodeCase& job) {
  const auto columns = static_cast<size_t>(matrix.columns);
  Columns q(rank, std::vector<double>(columns));
  for (size_t j = 0; j < rank; ++j) {
    bool drawn = true;
    for (size_t c = 0; c < columns && !job.state.empty(); ++c) {
      float number = 0;
      std::memcpy(&number, job.state.data() + 4 * (q_at + j * columns + c), 4);
      q[j][c] = number;
      drawn = drawn && number == 0;
    }
    for (size_t c = 0; c < columns && drawn; ++c) {
      const auto element = static_cast<uint64_t>(job.first_element + matrix.begin) + j * columns + c;
      const auto words = shared_words(job.random, element);
      q[j][c] = std::ldexp(static_cast<double>(static_cast<int32_t>(words[0])), -31);
    }
  }
  return q;
}

// P P^T M of each matrix that has at least twice as many numbers as P and Q, and all other elements unchanged.
Reference low_rank(const core::CompressorSpec& spec, std::span<const float> p, const EncodeCase& job) {
  Reference reference{.decoded = {}, .tolerance = 1e-6};
  for (float value : p) reference.decoded.push_back(double{job.scale * value});
  const auto rank = static_cast<size_t>(spec.parameter);
  size_t q_at = 0;
  for (const core::Matrix& matrix : matrices_among(*make(core::to_string(spec)), job.gradient.size())) {
    const auto rows = static_cast<size_t>(matrix.rows), columns = static_cast<size_t>(matrix.columns);
    if (rows * columns < 2 * rank * (rows + columns)) continue;
    reference.draws = Draws::shared;
    if (p.empty()) continue;
    const float* const m = p.data() + matrix.begin;
    const Columns q = start_of(matrix, rank, q_at, job);
    q_at += rank * columns;
    Columns basis(rank, std::vector<double>(rows));
    double squares = 0;
    for (size_t i = 0; i < rows * columns; ++i) squares += double{m[i]} * m[i];
    for (size_t j = 0; j < rank; ++j) {
      for (size_t i = 0; i < rows * columns; ++i) basis[j][i / columns] += double{m[i]} * q[j][i % columns];
    }
    orthonormalise(basis);
    std::fill_n(reference.decoded.begin() + matrix.begin, rows * columns, 0.0);
    for (const std::vector<double>& column : basis) {
      std::vector<double> product(columns);
      for (size_t i = 0; i < rows * columns; ++i) product[i % columns] += double{m[i]} * column[i / columns];
      for (size_t i = 0; i < rows * columns; ++i) {
        reference.decoded[static_cast<size_t>(matrix.begin) + i] +=
            job.scale * column[i / columns] * product[i % columns];
      }
    }
    // Single precision turns P a little.
    reference.absolute_tolerance = std::max(reference.absolute_tolerance, 1e-5 * job.scale * std::sqrt(squares));
  }
  return reference;
}

}  // namespace

uint16_t reference_random(const compress::Random& random, uint64_t element) {
  const uint64_t group = element / 128, in_pair = element % 64, in_half = in_pair % 32;
  const auto block = static_cast<uint32_t>(group * 8 + in_half / 4);
  const auto words = core::philox4x32({block, random.step, random.rank, random.use},
                                      {static_cast<uint32_t>(random.seed), static_cast<uint32_t>(random.seed >> 32)});
  const uint32_t word = words[in_pair / 32 * 2 + in_half % 4 / 2];
  const auto bits = static_cast<uint16_t>(in_half % 2 == 0 ? word : word >> 16);
  return element % 128 < 64 ? bits : static_cast<uint16_t>(bits << 8 | bits >> 8);
}

Reference reference_encode(const core::CompressorSpec& spec, std::span<const float> p, const EncodeCase& job) {
  const float scale = job.scale;
  const auto block = static_cast<size_t>(spec.parameter);
  for (const char* exact : {"none", "packed", "rows", "coo", "blocks"}) {
    if (spec.name == exact) return each_rounded(p, scale, [](double value) { return value; });
  }
  if (spec.name == "bf16" || spec.name == "bf16packed") return each_rounded(p, scale, round_to_bf16);
  if (spec.name == "fp16") return each_rounded(p, scale, round_to_fp16);
  // Without state nothing is kept between steps.
  if (spec.name == "topk" || spec.name == "threshk" || spec.name == "dgc") return largest(p, scale, spec.parameter);
  if (spec.name == "efsignsgd") return signs(p, scale, block);
  if (spec.name == "onebit") return sides(p, scale, block);
  if (spec.name == "signsgd" || spec.name == "signum") return votes(p, scale);
  if (spec.name == "int8") return block_codes(integers(block, 127, false), p, job);
  if (spec.name.starts_with("int")) {
    return block_codes(integers_of_few_bits(block, spec.name[3] - '0'), p, job);
  }
  if (spec.name == "terngrad") return block_codes(integers(block, 1, true), p, job);
  if (spec.name == "qsgd") return block_codes(qsgd(static_cast<int>(spec.parameter)), p, job);
  if (spec.name == "fp8e4m3") return block_codes(floats(block, 4, -9, 448), p, job);
  if (spec.name == "fp8e5m2") return block_codes(floats(block, 3, -16, 57344), p, job);
  if (spec.name == "randk") return drawn(p, spec.parameter, job);
  if (spec.name == "powersgd") return low_rank(spec, p, job);
  if (spec.name == "thc") return rotated(p, static_cast<int>(spec.parameter), job);
  if (spec.name == "natural") return block_codes(powers(), p, job);
  ADD_FAILURE() << "no reference of " << core::to_string(spec);
  return {};
}

double round_to_format(double value, int precision_bits, int min_place, double largest) {
  if (value == 0 || !std::isfinite(value)) return value;
  const int place = std::max(std::ilogb(value) - (precision_bits - 1), min_place);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -place)), place);
  return std::abs(rounded) <= largest ? rounded : std::copysign(std::numeric_limits<double>::infinity(), value);
}

double round_to_fp16(double value) { return round_to_format(value, 11, -24, 65504); }

double round_to_bf16(double value) { return round_to_format(value, 8, -133, 0x1.fep127); }

double value_of_fp16(uint16_t code) {
  const int exponent = code >> 10 & 31, mantissa = code & 1023;
  double magnitude = std::ldexp(exponent == 0 ? mantissa : 1024 + mantissa, std::max(exponent, 1) - 25);
  if (exponent == 31) {
    magnitude = mantissa == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  return code >> 15 != 0 ? -magnitude : magnitude;
}

}  // namespace gradtune::suites
