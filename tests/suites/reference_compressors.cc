// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/suites/reference_compressors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

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

}  // namespace

Reference reference_encode(const core::CompressorSpec& spec, std::span<const float> p, float scale) {
  if (spec.name == "none") return each_rounded(p, scale, [](double value) { return value; });
  if (spec.name == "bf16") return each_rounded(p, scale, round_to_bf16);
  if (spec.name == "fp16") return each_rounded(p, scale, round_to_fp16);
  if (spec.name == "topk") return largest(p, scale, spec.parameter);
  if (spec.name == "efsignsgd") return signs(p, scale, static_cast<size_t>(spec.parameter));
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
