// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/policies/step_model.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace gradtune::policies::testing {
namespace {

using core::Step;
constexpr double kNever = std::numeric_limits<double>::infinity();

struct Progress {
  size_t step = 0;           // of the bucket's program
  double ready_us = kNever;  // when that step may start
};

class Replay {
 public:
  Replay(const StepModel& model, const core::Strategy& strategy)
      : model_(model), strategy_(strategy), progress_(strategy.buckets.size()) {
    for (const core::Bucket& bucket : strategy.buckets) last_tensor_.push_back(bucket.slices.back().tensor);
  }

  double run_us() {
    lane_us_[0] = model_.first_ready_us;
    while (true) {
      if (communicate()) continue;
      if (auto bucket = next_codec_step(core::Place::host)) {
        work(*bucket, core::Place::host);
        continue;
      }
      // The device runs a pending step now, else the next piece of backward, else it waits.
      const auto bucket = next_codec_step(core::Place::device);
      if (bucket && (progress_[*bucket].ready_us <= lane_us_[0] || next_tensor_ == model_.table.tensors.size())) {
        work(*bucket, core::Place::device);
      } else if (next_tensor_ < model_.table.tensors.size()) {
        backward();
      } else {
        break;
      }
    }
    double end_us = lane_us_[0];
    for (const Progress& progress : progress_) end_us = std::max(end_us, progress.ready_us);
    return end_us + model_.optimizer_us;
  }

 private:
  const Step& step_of(size_t bucket) const { return strategy_.buckets[bucket].option.steps[progress_[bucket].step]; }
  bool is_done(size_t bucket) const { return progress_[bucket].step == strategy_.buckets[bucket].option.steps.size(); }

  void backward() {
    const size_t tensor = next_tensor_++;
    const double before_us = tensor == 0 ? 0 : model_.table.tensors[tensor - 1].ready_us;
    lane_us_[0] += model_.table.tensors[tensor].ready_us - before_us;
    for (size_t b = 0; b < progress_.size(); ++b) {
      if (static_cast<size_t>(last_tensor_[b]) == tensor) progress_[b].ready_us = lane_us_[0];
    }
  }

  // The bucket whose encode or decode at that place can start first; a bucket that just became ready precedes
  // others.
  std::optional<size_t> next_codec_step(core::Place place) const {
    const auto start = [&](size_t b) {
      return std::pair(std::max(progress_[b].ready_us, lane_us_[static_cast<size_t>(place)]), progress_[b].step);
    };
    std::optional<size_t> next;
    for (size_t b = 0; b < progress_.size(); ++b) {
      if (is_done(b) || core::is_collective(step_of(b).kind) || step_of(b).place != place) continue;
      if (progress_[b].ready_us != kNever && (!next || start(b) < start(*next))) next = b;
    }
    return next;
  }

  void work(size_t bucket, core::Place place) {
    double& lane_us = lane_us_[static_cast<size_t>(place)];
    const double slowdown = place == core::Place::host ? model_.host_slowdown : 1;
    lane_us = std::max(lane_us, progress_[bucket].ready_us) + slowdown * codec_us(bucket);
    progress_[bucket] = {progress_[bucket].step + 1, lane_us};
  }

  // Runs the next collective of the order, when its turn has come.
  bool communicate() {
    if (issued_ == strategy_.order.size()) return false;
    const core::Issue issue = strategy_.order[issued_];
    Progress& progress = progress_[static_cast<size_t>(issue.bucket)];
    if (progress.step != static_cast<size_t>(issue.step) || progress.ready_us == kNever) return false;
    link_us_ = std::max(link_us_, progress.ready_us) + collective_us(static_cast<size_t>(issue.bucket));
    progress = {progress.step + 1, link_us_};
    ++issued_;
    return true;
  }

  const core::CompressorTraits* traits(size_t bucket) const {
    const core::Option& option = strategy_.buckets[bucket].option;
    if (option.codecs.empty()) return nullptr;
    return &*std::find_if(model_.traits.begin(), model_.traits.end(),
                          [&](const auto& row) { return row.name == option.codecs[0].name; });
  }

  bool is_sharded(size_t bucket) const {
    const auto& steps = strategy_.buckets[bucket].option.steps;
    return std::any_of(steps.begin(), steps.end(), [](const Step& s) { return s.kind == Step::Kind::all_to_all; });
  }

  double payload_bytes(size_t bucket, int64_t n) const {
    if (const auto* row = traits(bucket)) {
      return static_cast<double>(row->payload_bytes(strategy_.buckets[bucket].option.codecs[0], n, 0));
    }
    const auto& tensor = model_.table.tensors[static_cast<size_t>(last_tensor_[bucket])];
    return static_cast<double>(n * core::bytes_per_element(tensor.dtype));
  }

  double collective_us(size_t bucket) const {
    const int64_t n = core::numel(strategy_.buckets[bucket]);
    const double peers = model_.world_size - 1, ranks = model_.world_size;
    const int64_t shard = (n + model_.world_size - 1) / model_.world_size;
    switch (step_of(bucket).kind) {
      case Step::Kind::all_reduce:
        return 2 * model_.round_us + 2 * peers / ranks * payload_bytes(bucket, n) / model_.link_bytes_per_us;
      case Step::Kind::all_to_all:
        return model_.round_us + peers * payload_bytes(bucket, shard) / model_.link_bytes_per_us;
      default:
        return model_.round_us +
               peers * payload_bytes(bucket, is_sharded(bucket) ? shard : n) / model_.link_bytes_per_us;
    }
  }

  // Work on n elements; only on a shard's for the second encode and the first decode of a two-step program.
  double codec_us(size_t bucket) const {
    const auto& steps = strategy_.buckets[bucket].option.steps;
    const size_t at = progress_[bucket].step;
    const auto ranks = static_cast<double>(model_.world_size);
    const auto n = static_cast<double>(core::numel(strategy_.buckets[bucket]));
    const bool summable = traits(bucket)->summable;
    const double bytes_per_element = payload_bytes(bucket, core::numel(strategy_.buckets[bucket])) / n;
    double ns = 0;
    if (step_of(bucket).kind == Step::Kind::encode) {
      ns = (at == 0 ? n : n / ranks) * (summable ? model_.copy_ns : model_.compress_ns);
    } else {
      const Step::Kind before = steps[at - 1].kind;
      const bool adds_up =
          before != Step::Kind::all_reduce && !(is_sharded(bucket) && before == Step::Kind::all_gather);
      const double elements = before == Step::Kind::all_to_all ? n / ranks : n;
      const double payloads = adds_up ? ranks : 1;
      // Adding costs by the content of a payload, besides one pass over the gradient.
      ns = elements * model_.copy_ns + elements * payloads * model_.add_ns * std::min(1.0, bytes_per_element / 2);
    }
    return model_.program_us + ns * 1e-3;
  }

  const StepModel& model_;
  const core::Strategy& strategy_;
  std::vector<Progress> progress_;
  std::vector<int32_t> last_tensor_;
  size_t next_tensor_ = 0;
  double lane_us_[2] = {0, 0};  // the times at which the device and the host are free
  double link_us_ = 0;
  size_t issued_ = 0;
};

}  // namespace

double StepModel::step_ms(const core::Strategy& strategy) const { return Replay(*this, strategy).run_us() / 1000; }

}  // namespace gradtune::policies::testing
