// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/codec_uses.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "engine/compress/compressor.h"
#include "engine/core/rng.h"
#include "tests/engine/exec/gradient_arenas.h"
#include "tests/engine/exec/host_device.h"
#include "tests/suites/compressor_harness.h"

namespace gradtune::exec {
namespace {

const std::vector<core::CompressorSpec> kCodecs = {{"none"},           {"packed"},     {"bf16packed"},
                                                   {"int4packed", 64}, {"topk", 0.01}, {"rows"}};

std::map<std::string, double> uses_of(const core::GradientTable& table, const Values& gradients) {
  GradientArenas arenas(table);
  arenas.write(gradients);
  std::map<std::string, double> uses;
  for (const auto& [codec, share] : codec_uses(table, arenas.arenas(), kCodecs)) uses[codec] = share;
  return uses;
}

// The share that the whole tensors would use.
double share_of_all(const core::CompressorSpec& spec, std::span<const float> values) {
  const auto codec = compress::make_compressor(spec).value();
  const core::Extent extent{static_cast<int64_t>(values.size()), {}};
  std::vector<std::byte> payload(static_cast<size_t>(codec->payload_bytes(extent, 0))),
      scratch(static_cast<size_t>(codec->scratch_bytes(extent)));
  compress::Verdict verdict;
  const auto queue = compress::make_serial_queue();
  codec->encode({.gradient = values, .payload = payload, .scratch = scratch, .verdict = &verdict}, *queue);
  return static_cast<double>(codec->traits().used_bytes(payload)) / static_cast<double>(payload.size());
}

TEST(CodecUses, AreThoseOfTheWholeGradient) {
  core::GradientTable table{.tensors = {{.name = "a", .shape = {700, 600}, .numel = 420'000},
                                        {.name = "b", .shape = {300}, .numel = 300},
                                        {.name = "c", .shape = {200'000}, .numel = 200'000}}};
  for (const suites::Data data : {suites::Data::normal, suites::Data::layered}) {
    const Values gradients = suites::make_data(data, static_cast<size_t>(table.numel()), 7);
    const auto uses = uses_of(table, gradients);
    EXPECT_EQ(uses.size(), 3U) << "those that need not be full, and leave out no zeros";
    for (const core::CompressorSpec& spec : {kCodecs[1], kCodecs[2], kCodecs[3]}) {
      ASSERT_TRUE(uses.contains(to_string(spec)));
      EXPECT_NEAR(uses.at(to_string(spec)), share_of_all(spec, gradients), 0.03) << to_string(spec);
    }
  }
}

TEST(CodecUses, CountTensorsByTheirSizes) {
  // Zeros pack better than random numbers.
  core::GradientTable table{.tensors = {{.name = "zeros", .shape = {300'000}, .numel = 300'000},
                                        {.name = "random", .shape = {100'000}, .numel = 100'000}}};
  Values gradients = suites::make_data(suites::Data::normal, 400'000, 3);
  const double of_random =
      uses_of({.tensors = {table.tensors[1]}}, Values(gradients.begin() + 300'000, gradients.end())).at("packed");
  std::fill_n(gradients.begin(), 300'000, 0.0F);
  const double of_zeros = uses_of({.tensors = {table.tensors[0]}}, Values(300'000)).at("packed");
  EXPECT_LT(of_zeros, of_random);
  EXPECT_NEAR(uses_of(table, gradients).at("packed"), 0.75 * of_zeros + 0.25 * of_random, 1e-9);
}

// Two large tensors count by their elements beside many smaller ones.
TEST(CodecUses, StandForAllTensors) {
  core::GradientTable table;
  for (int t = 0; t < 42; ++t) {
    const int64_t numel = t < 2 ? 200'000 : 20'000;
    table.tensors.push_back({.name = "tensor" + std::to_string(t), .shape = {numel}, .numel = numel});
  }
  Values gradients = suites::make_data(suites::Data::normal, static_cast<size_t>(table.numel()), 3);
  std::fill_n(gradients.begin(), 400'000, 0.0F);
  for (const core::CompressorSpec& spec : {kCodecs[1], kCodecs[3]}) {
    EXPECT_NEAR(uses_of(table, gradients).at(to_string(spec)), share_of_all(spec, gradients), 0.02) << to_string(spec);
  }
}

// Rows of sparse gradients are not in the arenas, where they would look like zeros.
TEST(CodecUses, SparseTensorsDoNotCount) {
  core::GradientTable table{.tensors = {{.name = "table", .shape = {3000, 100}, .numel = 300'000},
                                        {.name = "random", .shape = {100'000}, .numel = 100'000}}};
  Values gradients = suites::make_data(suites::Data::normal, 400'000, 3);
  std::fill_n(gradients.begin(), 300'000, 0.0F);
  const auto alone = uses_of({.tensors = {table.tensors[1]}}, Values(gradients.begin() + 300'000, gradients.end()));
  EXPECT_NE(uses_of(table, gradients), alone);
  table.tensors[0].content = {.row = 100, .of_one = 0.5, .of_all = 1};
  EXPECT_EQ(uses_of(table, gradients), alone);
}

TEST(CodecUses, OfSixteenBitsAreThoseOfTheirValues) {
  core::GradientTable table{
      .tensors = {{.name = "a", .shape = {100'000}, .numel = 100'000, .dtype = core::DType::bf16}}};
  const Values gradients = suites::make_data(suites::Data::normal, 100'000, 5);
  const core::CompressorSpec& bf16packed = kCodecs[2];
  EXPECT_NEAR(uses_of(table, gradients).at("bf16packed"), share_of_all(bf16packed, gradients), 0.03);
}

TEST(CodecUses, OfGradientsOnADeviceAreThoseOfItsNumbers) {
  const core::GradientTable table{
      .tensors = {{.name = "a", .shape = {700, 600}, .numel = 420'000},
                  {.name = "b", .shape = {200'000}, .numel = 200'000, .dtype = core::DType::f16}}};
  const Values gradients = suites::make_data(suites::Data::layered, static_cast<size_t>(table.numel()), 7);
  HostDevice device(
      {.delay_us = [](const std::string&, core::Rng& rng) { return static_cast<int64_t>(rng.below(2000)); }});
  GradientArenas arenas(on_device(table), &device);
  arenas.write(gradients);
  std::map<std::string, double> uses;
  for (const auto& [codec, share] : codec_uses(arenas.table(), arenas.arenas(), kCodecs, &device)) uses[codec] = share;
  EXPECT_EQ(uses, uses_of(table, gradients));
  EXPECT_EQ(uses.size(), 3U);
  EXPECT_TRUE(codec_uses(arenas.table(), arenas.arenas(), kCodecs).empty()) << "nobody reaches them";
}

TEST(CodecUses, OfADeviceThatHangsAreNotMeasured) {
  const core::GradientTable table{.tensors = {{.name = "a", .shape = {10'000}, .numel = 10'000}}};
  HostDevice device({.hangs = [](const std::string& queue) { return queue == "current"; }});
  GradientArenas arenas(on_device(table), &device);
  EXPECT_TRUE(codec_uses(arenas.table(), arenas.arenas(), kCodecs, &device, 20).empty());
  device.close();
  EXPECT_TRUE(device.current().mark().wait(10'000).ok()) << "copies that come late have a place to go to";
}

TEST(CodecUses, AreNotMeasuredWhereNothingCanBe) {
  core::GradientTable table{.tensors = {{.name = "a", .shape = {100}, .numel = 100}}};
  EXPECT_TRUE(uses_of(table, Values(100, 1)).empty()) << "too small";
  table.tensors[0] = {.name = "a", .shape = {10'000}, .numel = 10'000};
  Values bad(10'000, 1);
  bad[5000] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(uses_of(table, bad).contains("int4packed:64"));
}

}  // namespace
}  // namespace gradtune::exec
