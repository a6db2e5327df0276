// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What each compressor of the table has to do, written down in fp64 and without regard for speed: the oracle of the
// conformance suite. Shares no code with the compressors.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/core/compressor.h"
#include "tests/suites/compressor_harness.h"

namespace gradtune::suites {

// What random numbers hang on: nothing, as there are none; the element, and the rank; or all elements together, and all
// ranks draw alike.
enum class Draws : uint8_t { none, own_by_element, shared };

struct Reference {
  std::vector<double> decoded;    // what the payload stands for
  std::vector<double> also = {};  // or this, where rounding on the way to it decides; may be empty
  double tolerance = 0;           // allowed relative difference of decoded values
  double absolute_tolerance = 0;  // and what is allowed besides
  Draws draws = Draws::none;
  bool unbiased = false;  // the mean of what is decoded, over steps, is scale * p
  bool sizeless = false;  // what is decoded says nothing of the size of p
};

// The payload of scale * p. A spec that is not known here fails the test that asks: every compressor has a reference.
// Where a number is rounded one way or another, the fp32 roundings on the way to it belong to the definition.
Reference reference_encode(const core::CompressorSpec& spec, std::span<const float> p, const EncodeCase& job);

// The 16 random bits of the element at that position, as random-inl.h says.
uint16_t reference_random(const compress::Random& random, uint64_t element);

// The nearest number with so many bits of precision whose unit in the last place is at least 2^min_place, ties to even;
// infinite above the largest finite number.
double round_to_format(double value, int precision_bits, int min_place, double largest);

double round_to_fp16(double value);
double round_to_bf16(double value);
double value_of_fp16(uint16_t code);

}  // namespace gradtune::suites
