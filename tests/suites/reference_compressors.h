// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The definition of each compressor of the table, in fp64 and without regard for speed: the oracle of the
// conformance suite. It shares no code with the compressors.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/core/compressor.h"
#include "tests/suites/compressor_harness.h"

namespace gradtune::suites {

// The scope of random numbers: none are used; each element and rank draws its own; or all elements together, and all
// ranks draw alike.
enum class Draws : uint8_t { none, own_by_element, shared };

struct Reference {
  std::vector<double> decoded;    // the values that the payload represents
  std::vector<double> also = {};  // or this, if a rounding on the way decides; may be empty
  double tolerance = 0;           // allowed relative difference of decoded values
  double absolute_tolerance = 0;  // and an absolute difference in addition
  Draws draws = Draws::none;
  bool unbiased = false;  // the mean of decoded values, over steps, is scale * p
  bool sizeless = false;  // decoded values say nothing about the size of p
};

// The payload of scale * p. An unknown spec fails the test that asks: every compressor has a reference. If a number
// can be rounded either way, the fp32 roundings on the way to it belong to the definition.
Reference reference_encode(const core::CompressorSpec& spec, std::span<const float> p, const EncodeCase& job);

// The 16 random bits of the element at that position, as defined in random-inl.h.
uint16_t reference_random(const compress::Random& random, uint64_t element);

// The nearest number with so many bits of precision whose unit in the last place is at least 2^min_place, ties to even;
// infinite above the largest finite number.
double round_to_format(double value, int precision_bits, int min_place, double largest);

double round_to_fp16(double value);
double round_to_bf16(double value);
double value_of_fp16(uint16_t code);

}  // namespace gradtune::suites
