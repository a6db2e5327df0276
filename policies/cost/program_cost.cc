// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/cost/program_cost.h"

#include <bit>
#include <cmath>

namespace gradtune::policies {
namespace {

using core::Option;
using core::Place;
using core::Step;
using Kind = Step::Kind;

std::optional<OpCost> step_time(const Step& step, const OpSize& size, const Option& option, const CostTable& table) {
  if (core::is_collective(step.kind)) {
    const CollectiveRate* rate = find_rate(table, step.kind, step.level);
    if (rate == nullptr) return {};
    const int group = table.ranks.of(step.level);
    auto bytes = static_cast<double>(size.link_bytes);
    if (size.codec >= 0)
      bytes *= find_use(table, option.codecs[static_cast<size_t>(size.codec)]).value_or(size.use) / size.use;
    return OpCost{
        .messages_us = rate->messages_us(group), .busy_us = bytes * rate->byte_us, .wait_us = rate->travel_us(group)};
  }
  const CodecRate* rate = find_rate(table, option.codecs[step.codec], step.place);
  if (rate == nullptr) return {};
  const auto elements = static_cast<double>(size.elements);
  if (step.kind == Kind::encode) return OpCost{.busy_us = rate->encode_us + elements * rate->encode_element_us};
  return OpCost{.busy_us = rate->decode_us + elements * rate->decode_element_us +
                           static_cast<double>(size.bytes) * rate->decode_byte_us};
}

bool is_never_more(const std::vector<Work>& a, const std::vector<Work>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      if (a[i][lane] > b[i][lane]) return false;
    }
  }
  return true;
}

// True if the device has work after the first collective. Backward waits for that work in a later hook, however
// short it is, which lanes do not model.
bool works_late_on_device(const Option& option) {
  const auto first =
      std::ranges::find_if(option.steps, [](const Step& step) { return core::is_collective(step.kind); });
  return std::any_of(first, option.steps.end(),
                     [](const Step& step) { return !core::is_collective(step.kind) && step.place == Place::device; });
}

// Work at 1, 2, 4, ... elements, for each dtype.
class TabulatedCost final : public CostModel {
 public:
  using Works = std::array<std::vector<Work>, core::kDTypes.size()>;

  void add(const Option& option, bool loses, Works works) {
    options_.push_back(option);
    loses_.push_back(loses);
    works_.push_back(std::move(works));
  }

  // Drops options that are no better than another one. A baseline option is never dropped for an option that is not
  // a baseline, nor an option on the device for one that is not, because some planners begin with these.
  void drop_dominated() {
    std::vector<bool> dropped(options_.size()), late;
    for (const Option& option : options_) late.push_back(works_late_on_device(option));
    const auto is_as_good = [&](size_t other, size_t o) {
      if (is_baseline(options_[o], loses_[o]) && !is_baseline(options_[other], loses_[other])) return false;
      if (core::uses_host(options_[other]) && !core::uses_host(options_[o])) return false;
      return loses_[other] <= loses_[o] && late[other] <= late[o] &&
             std::ranges::all_of(core::kDTypes, [&](core::DType dtype) {
               const auto d = static_cast<size_t>(dtype);
               return is_never_more(works_[other][d], works_[o][d]);
             });
    };
    for (size_t o = 1; o < options_.size(); ++o) {
      for (size_t other = 0; other < options_.size() && !dropped[o]; ++other) {
        dropped[o] = other != o && !dropped[other] && is_as_good(other, o);
      }
    }
    size_t kept = 0;
    for (size_t o = 0; o < options_.size(); ++o) {
      if (dropped[o]) continue;
      if (kept != o) {
        options_[kept] = std::move(options_[o]);
        works_[kept] = std::move(works_[o]);
        loses_[kept] = loses_[o];
      }
      ++kept;
    }
    options_.resize(kept);
    works_.resize(kept);
    loses_.resize(kept);
    find_hosts();
  }

  std::span<const Option> options() const override { return options_; }
  std::optional<size_t> on_host(size_t option) const override { return on_host_[option]; }
  bool loses(size_t option) const override { return loses_[option]; }

  Work work(size_t option, int64_t numel, core::DType dtype) const override {
    const std::vector<Work>& works = works_[option][static_cast<size_t>(dtype)];
    core::check(!works.empty(), "a cost model is asked for gradients of a type that it was not made for");
    const auto n = static_cast<uint64_t>(std::max<int64_t>(numel, 1));
    const auto below = std::min(static_cast<size_t>(std::bit_width(n)) - 1, works.size() - 2);
    const double share = static_cast<double>(n) / static_cast<double>(uint64_t{1} << below) - 1;
    Work work;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      work[lane] = works[below][lane] + share * (works[below + 1][lane] - works[below][lane]);
    }
    return work;
  }

 private:
  void find_hosts() {
    on_host_.assign(options_.size(), std::nullopt);
    for (size_t o = 0; o < options_.size(); ++o) {
      Option host = options_[o];
      bool moved = false;
      for (Step& step : host.steps) {
        if (core::is_collective(step.kind)) continue;
        moved = moved || step.place != Place::host;
        step.place = Place::host;
      }
      if (moved) on_host_[o] = number_of(host, *this);
    }
  }

  std::vector<Option> options_;
  std::vector<bool> loses_;
  std::vector<Works> works_;
  std::vector<std::optional<size_t>> on_host_;
};

}  // namespace

core::Result<std::vector<OpCost>> program_op_costs(const CostTable& table, const Option& option,
                                                   const core::Extent& bucket, core::TraitsTable known,
                                                   core::DType dtype) {
  const auto refuse = [&](const std::string& what) {
    return core::Error{core::Error::Code::invalid, "program \"" + to_string(option) + "\": " + what};
  };
  if (!core::fits(option, table.ranks)) return refuse("the cost table's ranks have no such levels or dimensions");
  const std::vector<OpSize> sizes = op_sizes(option, bucket, table.ranks, known, dtype);
  std::vector<OpCost> times;
  for (size_t i = 0; i < option.steps.size(); ++i) {
    const auto time = step_time(option.steps[i], sizes[i], option, table);
    if (!time) return refuse("the cost table has no rate for step " + std::to_string(i));
    times.push_back(*time);
  }
  return times;
}

std::vector<CopyCost> program_copy_costs(const CostTable& table, const Option& option, const core::Extent& bucket,
                                         core::TraitsTable known, core::DType dtype) {
  std::vector<CopyCost> costs;
  if (!table.on_device.gradients) return costs;
  const std::vector<OpSize> sizes = op_sizes(option, bucket, table.ranks, known, dtype);
  for (const Copy& copy : copies(option, bucket.numel, dtype, sizes, table.on_device)) {
    costs.push_back({copy.before, copy.to_host, (copy.to_host ? table.to_host : table.to_device).us(copy.bytes)});
  }
  return costs;
}

std::optional<Work> program_work(const CostTable& table, const Option& option, const core::Extent& bucket,
                                 core::TraitsTable known, core::DType dtype) {
  const auto times = program_op_costs(table, option, bucket, known, dtype);
  if (!times) return {};
  const auto is_collective = [](const Step& step) { return core::is_collective(step.kind); };
  const auto first = std::find_if(option.steps.begin(), option.steps.end(), is_collective) - option.steps.begin();
  const auto last = option.steps.rend() - std::find_if(option.steps.rbegin(), option.steps.rend(), is_collective) - 1;
  Work work{};
  const double pass = pass_us(table, bucket.numel);
  if (option.steps.front().kind != Kind::encode) work[kBackward] += pass;
  if (is_staged(option, dtype)) {
    work[option.steps.front().place == Place::host ? kHost : kBackward] += pass;
    work[kUnpack] += pass;
  }
  for (size_t i = 0; i < option.steps.size(); ++i) {
    const auto position = static_cast<std::ptrdiff_t>(i);
    const Lane lane = position > last    ? kUnpack
                      : position < first ? (option.steps[i].place == Place::host ? kHost : kBackward)
                                         : kLink;
    work[lane] += times.value()[i].us();
  }
  for (const CopyCost& copy : program_copy_costs(table, option, bucket, known, dtype)) {
    const auto position = static_cast<std::ptrdiff_t>(copy.before);
    work[position > last ? kUnpack : position <= first ? kHost : kLink] += copy.us;
  }
  return work;
}

core::Result<std::unique_ptr<CostModel>> make_program_cost(const CostTable& table, const std::vector<Option>& options,
                                                           core::TraitsTable known, int64_t most_elements,
                                                           const std::vector<core::DType>& dtypes) {
  const size_t sizes =
      static_cast<size_t>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(most_elements, 1)))) + 1;
  auto model = std::make_unique<TabulatedCost>();
  const Option plain = core::plain_all_reduce();
  const auto tabulate = [&](const Option& option, core::DType dtype, std::vector<Work>& works) {
    for (size_t k = 0; k < sizes; ++k) {
      // Nearly all gradients are the weights of layers: one matrix, about square.
      const core::Matrix square{0, int64_t{1} << k / 2, int64_t{1} << (k - k / 2)};
      const Option& own = core::takes(option, dtype) ? option : plain;
      const auto work = program_work(table, own, {int64_t{1} << k, {&square, 1}}, known, dtype);
      if (!work) return false;
      works.push_back(*work);
      for (size_t lane = 0; k > 0 && lane < kLanes; ++lane) {  // padding may make a smaller bucket send more
        works[k][lane] = std::max(works[k][lane], works[k - 1][lane]);
      }
    }
    return true;
  };
  const auto add = [&](const Option& option) {
    TabulatedCost::Works works;
    for (const core::DType dtype : dtypes) {
      if (!tabulate(option, dtype, works[static_cast<size_t>(dtype)])) return false;
    }
    const bool is_lossy = core::needed_fidelity(option, known) == core::Fidelity::lossy;
    model->add(option, is_lossy, std::move(works));
    return true;
  };
  if (!add(plain)) {
    return core::Error{core::Error::Code::invalid, "the cost table has no rate of all_reduce over all ranks"};
  }
  for (const Option& option : options) {
    if (option != plain) add(option);
  }
  model->drop_dominated();
  return std::unique_ptr<CostModel>(std::move(model));
}

}  // namespace gradtune::policies
