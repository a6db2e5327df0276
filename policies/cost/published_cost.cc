// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/cost/published_cost.h"

#include <fmt/format.h>

#include "engine/core/unknown_name.h"

namespace gradtune::policies {
namespace {

constexpr double kLatencyUs = 150, kInterUsPerKb = 0.8;

// Microseconds for messages of up to 8 Mi elements, and proportional beyond. `both` is encode plus decode.
struct Codec {
  std::string_view name;
  double ratio;  // bytes of the payload over bytes of the gradient
  std::array<double, 4> both, decode;
};
constexpr double kSparse = 0.02, kSigns = 1.0 / 32;
constexpr Codec kCodecs[] = {
    {"randomk", kSparse, {0, 26, 88, 1000}, {0, 22, 34, 100}},
    {"dgc", kSparse, {0, 26, 390, 1400}, {0, 22, 34, 100}},
    {"efsignsgd", kSigns, {0, 26, 270, 810}, {0, 22, 140, 420}},
    {"onebit", kSigns, {0, 26, 620, 2000}, {0, 22, 170, 520}},
};

struct Intra {
  std::string_view name;
  double us_per_kb;
};
constexpr Intra kIntra[] = {{"pcie", 0.4}, {"nvl", 0.02}};

template <class Row>
core::Result<const Row*> find(std::span<const Row> rows, std::string_view name, std::string_view what) {
  std::vector<std::string_view> known;
  for (const Row& row : rows) {
    if (row.name == name) return &row;
    known.push_back(row.name);
  }
  return core::Error{core::Error::Code::invalid, core::unknown_name(what, name, known)};
}

class Published final : public CostModel {
 public:
  Published(const Codec& codec, const Intra& intra, const PublishedCost& parameters)
      : codec_(codec),
        intra_us_per_kb_(intra.us_per_kb),
        intra_factor_(ring(parameters.gpus_per_machine)),
        inter_factor_(ring(parameters.machines)) {
    const core::CompressorSpec spec{.name = std::string(codec.name)};
    options_ = {core::plain_all_reduce(), core::encoded_all_reduce({.name = "fp16"}, core::Place::device),
                core::gather_payloads(spec, core::Place::device)};
    if (parameters.two_level) options_.push_back(core::two_step(spec, core::Place::device));
  }

  std::span<const core::Option> options() const override { return options_; }
  std::optional<size_t> on_host(size_t) const override { return {}; }
  bool loses(size_t) const override { return false; }  // it treats all tensors alike

  Work work(size_t option, int64_t numel, core::DType dtype) const override {
    const auto elements = static_cast<double>(numel);
    const double bytes = static_cast<double>(core::bytes_per_element(dtype)) * elements;
    const double scale = std::max(1.0, elements / 8 / (1 << 20));
    const double both = codec_.both[option] * scale, decode = codec_.decode[option] * scale;
    const double inside = option == 0 ? bytes : option == 3 ? bytes * codec_.ratio : bytes / 2;
    const double between = option == 0 ? bytes : option == 1 ? bytes / 2 : bytes * codec_.ratio;
    // The released code first rounds the bytes of 16-bit payloads down, and then every number of KB.
    const double link = (option == 3 ? 4 : 2) * kLatencyUs + intra_us_per_kb_ * kilobytes(intra_factor_, inside) +
                        kInterUsPerKb * kilobytes(inter_factor_, between);
    return {both - decode, 0, link + (option >= 2 ? both : 0), 0};
  }

 private:
  static double ring(int size) { return 2.0 * (size - 1) / size; }
  static double kilobytes(double factor, double bytes) {
    return static_cast<double>(static_cast<int64_t>(factor * bytes / 1000));
  }

  const Codec codec_;
  const double intra_us_per_kb_, intra_factor_, inter_factor_;
  std::vector<core::Option> options_;
};

core::TraitsTable published_traits() {
  using core::CompressorSpec;
  constexpr auto full = [](const CompressorSpec&, const core::Extent& of, int) { return 4 * of.numel; };
  constexpr auto half = [](const CompressorSpec&, const core::Extent& of, int) { return 2 * of.numel; };
  // 1 % of the elements at 8 bytes each, and one bit for each element.
  constexpr auto sparse = [](const CompressorSpec&, const core::Extent& of, int) { return of.numel / 100 * 8; };
  constexpr auto signs = [](const CompressorSpec&, const core::Extent& of, int) { return of.numel / 8; };
  static const auto known = [=] {
    std::vector<core::CompressorTraits> all;
    const auto add = [&](std::string_view name, core::Fidelity fidelity, bool summable, auto payload_bytes) {
      core::CompressorTraits traits{};
      traits.name = name;
      traits.fidelity = fidelity;
      traits.summable = summable;
      traits.payload_bytes = payload_bytes;
      all.push_back(traits);
    };
    add("none", core::Fidelity::exact, true, full);
    add("fp16", core::Fidelity::half, true, half);
    for (const Codec& codec : kCodecs) {
      if (codec.ratio == kSparse) add(codec.name, core::Fidelity::lossy, false, sparse);
      if (codec.ratio == kSigns) add(codec.name, core::Fidelity::lossy, false, signs);
    }
    return all;
  }();
  return known;
}

}  // namespace

Knowledge published_knowledge(const PublishedCost& parameters, core::GradientTable table) {
  Knowledge knowledge{.table = std::move(table),
                      .ranks = {.size = parameters.machines},
                      .fidelity = core::Fidelity::lossy,
                      .codecs = {{.name = "none"}, {.name = "fp16"}, {.name = parameters.compressor}},
                      .traits = published_traits()};
  return knowledge;
}

core::Result<std::unique_ptr<CostModel>> make_published_cost(const PublishedCost& parameters) {
  const auto codec = find<Codec>(kCodecs, parameters.compressor, "compressor");
  if (!codec) return codec.error();
  const auto intra = find<Intra>(kIntra, parameters.intra, "link inside a machine");
  if (!intra) return intra.error();
  if (parameters.machines < 1 || parameters.gpus_per_machine < 1) {
    return core::Error{core::Error::Code::invalid,
                       fmt::format("at least 1 machine and 1 GPU per machine are needed, found {} and {}",
                                   parameters.machines, parameters.gpus_per_machine)};
  }
  return std::unique_ptr<CostModel>(std::make_unique<Published>(*codec.value(), *intra.value(), parameters));
}

}  // namespace gradtune::policies
