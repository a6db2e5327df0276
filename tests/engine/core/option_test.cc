// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/core/option.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "engine/core/rng.h"

namespace gradtune::core {
namespace {

using testing::HasSubstr;

int64_t no_bytes(const CompressorSpec& /*spec*/, const Extent& /*extent*/, int /*round*/) { return 0; }

const std::vector<CompressorTraits>& known() {
  static const std::vector<CompressorTraits> traits = {
      {.name = "half",
       .summary = "",
       .fidelity = Fidelity::half,
       .listed = Listed::always,
       .summable = true,
       .error_feedback = false,
       .parameter_name = "",
       .payload_bytes = no_bytes},
      {.name = "sparse",
       .summary = "",
       .fidelity = Fidelity::lossy,
       .listed = Listed::always,
       .summable = false,
       .error_feedback = true,
       .parameter_name = "density",
       .parameter_default = 0.01,
       .parameter_min = 1e-6,
       .parameter_max = 1,
       .payload_bytes = no_bytes},
      {.name = "blocks",
       .summary = "",
       .fidelity = Fidelity::lossy,
       .listed = Listed::never,
       .summable = false,
       .error_feedback = true,
       .parameter_name = "block",
       .parameter_default = 64,
       .parameter_min = 8,
       .parameter_max = 1024,
       .parameter_step = 8,
       .payload_bytes = no_bytes},
  };
  return traits;
}

std::string error_of(std::string_view text) {
  const Result<Option> option = parse_option(text, known());
  if (option.ok()) return "";
  EXPECT_EQ(option.error().code, Error::Code::invalid);
  return option.error().message;
}

TEST(Fidelity, IsPrintedAndParsed) {
  for (Fidelity fidelity : {Fidelity::exact, Fidelity::half, Fidelity::lossy}) {
    EXPECT_EQ(parse_fidelity(to_string(fidelity)).value(), fidelity);
  }
  EXPECT_EQ(parse_fidelity("best").error().message, "fidelity \"best\" is unknown; known are exact, half and lossy");
  EXPECT_LT(Fidelity::exact, Fidelity::half);
  EXPECT_LT(Fidelity::half, Fidelity::lossy);
}

TEST(Compressor, IsPrintedAsUsersWriteIt) {
  EXPECT_EQ(to_string(CompressorSpec{"half", 0}), "half");
  EXPECT_EQ(to_string(CompressorSpec{"sparse", 0.01}), "sparse:0.01");
  EXPECT_EQ(to_string(CompressorSpec{"blocks", 64}), "blocks:64");
}

TEST(Compressor, IsParsedWithItsDefault) {
  EXPECT_EQ(parse_compressor("half", known()).value(), (CompressorSpec{"half", 0}));
  EXPECT_EQ(parse_compressor("sparse", known()).value(), (CompressorSpec{"sparse", 0.01}));
  EXPECT_EQ(parse_compressor("sparse:0.5", known()).value(), (CompressorSpec{"sparse", 0.5}));
  EXPECT_EQ(parse_compressor("blocks:1024", known()).value(), (CompressorSpec{"blocks", 1024}));
}

TEST(Compressor, AStarIsTheSearchRange) {
  constexpr double kDensities[] = {0.1, 0.01};
  std::vector<CompressorTraits> traits = known();
  for (CompressorTraits& row : traits) {
    if (row.name == "sparse") row.parameter_search = kDensities;
  }
  const std::vector<CompressorSpec> all = {{"sparse", 0.1}, {"sparse", 0.01}};
  EXPECT_EQ(parse_compressors("sparse:*", traits).value(), all);
  EXPECT_EQ(parse_compressors("sparse:0.5", traits).value(), (std::vector<CompressorSpec>{{"sparse", 0.5}}));
  EXPECT_EQ(parse_compressors("half:*", traits).value(), (std::vector<CompressorSpec>{{"half", 0}}));
  EXPECT_THAT(parse_compressors("sparse:0.5:*", traits).error().message, HasSubstr("not a number"));
  EXPECT_THAT(parse_compressors("zip:*", traits).error().message, HasSubstr("unknown"));
}

TEST(Compressor, AnyParameterSurvivesPrinting) {
  Rng rng(1);
  for (int i = 0; i < 1000; ++i) {
    const CompressorSpec spec{"sparse", std::max(1e-6, rng.uniform())};
    EXPECT_EQ(parse_compressor(to_string(spec), known()).value(), spec);
  }
}

TEST(Compressor, ErrorsSayWhatIsAllowed) {
  const auto error = [](std::string_view text) { return parse_compressor(text, known()).error().message; };
  EXPECT_EQ(error("zip"), "compressor \"zip\" is unknown; known are half, sparse, blocks");
  EXPECT_THAT(error(""), HasSubstr("known are half, sparse, blocks"));
  EXPECT_THAT(error("half:3"), HasSubstr("half takes no parameter"));
  for (const char* text : {"sparse:", "sparse:x", "sparse:0.1x", "sparse: 0.1", "sparse:0.1:2"}) {
    EXPECT_THAT(error(text), HasSubstr("density is not a number")) << text;
  }
  for (const char* text : {"sparse:0", "sparse:1.01", "sparse:-1", "sparse:nan", "sparse:inf"}) {
    EXPECT_THAT(error(text), HasSubstr("a number from 1e-06 to 1")) << text;
  }
  for (const char* text : {"blocks:0", "blocks:12", "blocks:1032", "blocks:8.5"}) {
    EXPECT_THAT(error(text), HasSubstr("a number from 8 to 1024, a multiple of 8")) << text;
  }
}

// Finds the numbers from 0 on that are enumerators, by the compiler's name for them: "Kind::decode" and not
// "(Kind)9".
template <Step::Kind kKind>
constexpr bool is_enumerator() {
  const std::string_view name = __PRETTY_FUNCTION__;
  return name.find(')', name.find("kKind = ")) == std::string_view::npos || name[name.find("kKind = ") + 8] != '(';
}
template <size_t... kNumbers>
constexpr size_t count_enumerators(std::index_sequence<kNumbers...>) {
  return (0 + ... + (is_enumerator<static_cast<Step::Kind>(kNumbers)>() ? 1 : 0));
}

TEST(StepTable, HasARowForEachKind) {
  EXPECT_TRUE(is_enumerator<Step::Kind::gather>());
  EXPECT_FALSE(is_enumerator<static_cast<Step::Kind>(99)>()) << "the compiler prints enumerators otherwise";
  EXPECT_EQ(step_table().size(), count_enumerators(std::make_index_sequence<64>()));
  for (size_t row = 0; row < step_table().size(); ++row) {
    const StepTraits& traits = step_table()[row];
    EXPECT_EQ(static_cast<size_t>(traits.kind), row);
    EXPECT_EQ(&traits_of(traits.kind), &traits);
    EXPECT_EQ(parse_option("half: " + std::string(traits.name) + (traits.is_collective ? "" : "@host"), known())
                  .value()
                  .steps[0]
                  .kind,
              traits.kind);
  }
  EXPECT_ANY_THROW(traits_of(static_cast<Step::Kind>(step_table().size())));
}

TEST(StepTable, RowsDoNotContradictThemselves) {
  for (const StepTraits& traits : step_table()) {
    EXPECT_EQ(traits.is_collective, traits.link_bytes != nullptr) << traits.name;
    EXPECT_EQ(traits.is_collective, traits.messages > 0) << traits.name;
    EXPECT_TRUE(traits.takes_gradients || traits.takes_payloads) << traits.name;
    EXPECT_FALSE(traits.is_in_place && (traits.has_input_parts || traits.has_output_parts)) << traits.name;
    EXPECT_FALSE(traits.is_pairwise && !traits.has_input_parts) << traits.name;
    if (!traits.is_collective) continue;
    EXPECT_EQ(traits.link_bytes(1000, 1), 0) << traits.name << " in a group of one";
    EXPECT_GT(traits.link_bytes(1000, 4), 0) << traits.name;
    EXPECT_GE(messages(traits.kind, 4), travels(traits.kind, 4)) << traits.name;
  }
}

TEST(Option, FamiliesPrintAsDocumented) {
  const CompressorSpec sparse{"sparse", 0.01}, half{"half", 0};
  EXPECT_EQ(to_string(plain_all_reduce()), "all_reduce");
  EXPECT_EQ(to_string(encoded_all_reduce(half, Place::device)), "half: encode@device all_reduce decode@device");
  EXPECT_EQ(to_string(gather_payloads(sparse, Place::host)), "sparse:0.01: encode@host all_gather decode@host");
  EXPECT_EQ(to_string(two_step(half, Place::device)),
            "half: encode@device all_to_all decode@device encode@device all_gather decode@device");
  EXPECT_EQ(to_string(recursive_doubling(half, Place::host, 4)),
            "half: encode@host all_gather@dim0 decode@host encode@host all_gather@dim1 decode@host");
  EXPECT_EQ(collectives_of(recursive_doubling(half, Place::host, 64)), 6);
  for (const int prime : {2, 3, 7}) {
    EXPECT_EQ(recursive_doubling(half, Place::host, prime), gather_payloads(half, Place::host));
  }
}

TEST(Option, RoundsPrintBehindThePlace) {
  const CompressorSpec half{"half", 0}, sparse{"sparse", 0.01};
  Option rounds = encoded_all_reduce(half, Place::host, 2);
  EXPECT_EQ(to_string(rounds), "half: encode@host all_reduce decode@host encode@host.1 all_reduce decode@host.1");
  EXPECT_EQ(parse_option(to_string(rounds), known()).value(), rounds);
  rounds.codecs.push_back(sparse);
  rounds.steps[3].codec = 1;
  EXPECT_THAT(to_string(rounds), HasSubstr("decode@host encode@host#1.1 all_reduce"));
  EXPECT_EQ(parse_option(to_string(rounds), known()).value(), rounds);
  for (const char* text : {"encode@host.", "encode@host.x", "encode@host.1x", "encode@host.256", "encode@host#1.-1"}) {
    EXPECT_THAT(error_of("half,half: " + std::string(text)), HasSubstr("after . stands the number of a round")) << text;
  }
}

TEST(Option, PrintingAndParsingAreInverse) {
  const CompressorSpec sparse{"sparse", 0.003}, half{"half", 0};
  for (Place place : {Place::device, Place::host}) {
    for (const Option& option :
         {plain_all_reduce(), encoded_all_reduce(half, place), gather_payloads(sparse, place), two_step(sparse, place),
          recursive_doubling(sparse, place, 6), recursive_doubling(sparse, place, 1 << kMostDimensions)}) {
      EXPECT_EQ(parse_option(to_string(option), known()).value(), option);
    }
  }
  Option two_codecs = two_step(sparse, Place::host);
  two_codecs.codecs.push_back(half);
  two_codecs.steps[3].codec = two_codecs.steps[5].codec = 1;
  EXPECT_EQ(to_string(two_codecs),
            "sparse:0.003,half: encode@host all_to_all decode@host encode@host#1 all_gather "
            "decode@host#1");
  EXPECT_EQ(parse_option(to_string(two_codecs), known()).value(), two_codecs);
}

TEST(Option, CollectivesOverLevelsSaySo) {
  const char* const text =
      "half: reduce_scatter@intra encode@device gather@inter broadcast@inter decode@host all_gather@intra";
  const Option option = parse_option(text, known()).value();
  EXPECT_EQ(to_string(option), text);
  EXPECT_EQ(option.steps[0], (Step{.kind = Step::Kind::reduce_scatter, .level = Level::intra}));
  EXPECT_EQ(option.steps[3], (Step{.kind = Step::Kind::broadcast, .level = Level::inter}));
  EXPECT_EQ(parse_option("reduce broadcast", known()).value().steps[0], (Step{.kind = Step::Kind::reduce}));
}

TEST(Option, CollectivesNeedTheLevelsThatTheyAreOver) {
  const Option doubling = recursive_doubling({"half", 0}, Place::device, 4);
  EXPECT_FALSE(uses_levels(doubling));
  EXPECT_TRUE(fits(doubling, {.size = 4}) && fits(doubling, {.size = 6, .local_size = 2}));
  EXPECT_FALSE(fits(doubling, {.size = 3}));
  const Option levels = parse_option("reduce_scatter@intra all_reduce@inter all_gather@intra", known()).value();
  EXPECT_TRUE(uses_levels(levels) && fits(levels, {.size = 4, .local_size = 2}));
  EXPECT_FALSE(fits(levels, {.size = 4}));
}

TEST(Option, ErrorsNameTheWordAndWhatIsAllowed) {
  EXPECT_THAT(error_of(""), HasSubstr("at least one step"));
  EXPECT_THAT(error_of("half: "), HasSubstr("at least one step"));
  EXPECT_THAT(error_of("zip: encode@host"), HasSubstr("known are half, sparse, blocks"));
  EXPECT_EQ(error_of("all_reduce brodcast"),
            "step \"brodcast\" is unknown (did you mean \"broadcast\"?); known are encode, decode, all_reduce, "
            "reduce_scatter, all_gather, all_to_all, "
            "reduce, broadcast, gather");
  for (const char* step : {"all_reduce@host", "all_reduce@flat", "all_reduce@", "all_reduce@intra#1", "all_gather@dim",
                           "all_gather@dim30", "all_gather@dim00", "all_gather@dim-1"}) {
    EXPECT_THAT(error_of(step), HasSubstr("the level of a collective is @intra, @inter, a dimension from @dim0 to "
                                          "@dim29, or not said"));
  }
  EXPECT_THAT(error_of("half: encode all_reduce"), HasSubstr("\"encode\": the place is @device or @host"));
  EXPECT_THAT(error_of("half: encode@gpu"), HasSubstr("\"encode@gpu\": the place is @device or @host"));
  EXPECT_THAT(error_of("half: encode@host#1"), HasSubstr("names codec 1, the program has 1"));
  EXPECT_THAT(error_of("half: encode@host#x"), HasSubstr("after # stands the position of a codec"));
  EXPECT_THAT(error_of("half: encode@host#-1"), HasSubstr("after # stands the position of a codec"));
  EXPECT_THAT(error_of("encode@host"), HasSubstr("names codec 0, the program has 0"));
}

}  // namespace
}  // namespace gradtune::core
