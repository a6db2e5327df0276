// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs the fuzz target of payloads over the payloads of every compressor, and over some thousand mutations of them.
// No corpus is kept in files, since compressors make one.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "engine/core/rng.h"
#include "tests/suites/compressor_harness.h"

// payload_fuzz.cc
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
gradtune::core::Status decode_input(const uint8_t* data, size_t size);

namespace gradtune::suites {
namespace {

using Bytes = std::vector<uint8_t>;

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  const size_t rows = compress::compressor_table().size();
  for (size_t row = 0; row < rows; ++row) {
    const core::CompressorTraits& traits = compress::compressor_table()[row].traits;
    const double parameters[] = {traits.parameter_default, traits.parameter_min, traits.parameter_max};
    for (size_t p = 0; p < std::size(parameters); ++p) {
      const auto compressor = std::move(compress::make_compressor({std::string(traits.name), parameters[p]})).value();
      for (size_t n : {0, 1, 65, 700, 5000}) {
        const Payload payload = encode(*compressor, {.gradient = make_data(Data::layered, n)}).payload;
        Bytes bytes = {static_cast<uint8_t>(row + p * rows), static_cast<uint8_t>(n), static_cast<uint8_t>(n >> 8)};
        bytes.insert(bytes.end(), payload.begin(), payload.end());
        all.push_back(bytes);
      }
    }
  }
  return all;
}

// Most changes keep the size, as otherwise only sizes would be tested. Half of them are near the front, in the
// header and scales.
void mutate(Bytes& bytes, const std::vector<Bytes>& others, core::Rng& rng) {
  for (uint64_t count = 1 + rng.below(4); count > 0; --count) {
    const size_t at = rng.below(rng.below(2) == 0 ? bytes.size() : std::min<size_t>(bytes.size(), 64));
    switch (rng.below(8)) {
      case 0: bytes.resize(at + 1); break;
      case 1: bytes.insert(bytes.begin() + static_cast<int64_t>(at), rng.below(20), 0); break;
      case 2: {
        const Bytes& other = others[rng.below(others.size())];
        for (size_t i = at; i < std::min(bytes.size(), other.size()); ++i) bytes[i] = other[i];
        break;
      }
      case 3: bytes[at] = rng.below(2) == 0 ? 0xff : 0x7f; break;
      case 4: bytes[at] = static_cast<uint8_t>(rng.next()); break;
      default: bytes[at] ^= static_cast<uint8_t>(1 << rng.below(8));
    }
  }
}

TEST(PayloadFuzz, WhatCompressorsSendAndMutationsOfItDoNoHarm) {
  const std::vector<Bytes> all = seeds();
  for (const Bytes& seed : all) {
    const core::Status status = decode_input(seed.data(), seed.size());
    EXPECT_TRUE(status.ok()) << "byte " << int{seed[0]} << ": " << status.error().message;
  }
  core::Rng rng(2026);
  for (int round = 0; round < 90000; ++round) {
    Bytes bytes = all[rng.below(all.size())];
    mutate(bytes, all, rng);
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
}

}  // namespace
}  // namespace gradtune::suites
