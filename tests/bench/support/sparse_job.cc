// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A rank of the benchmark "sparse": trains a model of support/sparse_models.h, and writes the time and the loss of
// each step. Arms:
// - ddp: dense gradients under c10d::Reducer, the core of Python's DistributedDataParallel, with its defaults
// - by_hand: sparse gradients are all-gathered after backward, indices and values, as users of torch.distributed do.
//   The rest is all-reduced as one
// - dense, gather, two_step, recursive_doubling: gradtune with sparse gradients, and that scheme pinned for all
//   tables; the rest in the baseline's buckets
// - auto: gradtune, which tunes while it trains
// - file: gradtune with a pinned strategy that `auto` exported
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/compress/compressor.h"
#include "engine/core/strategy.h"
#include "examples/support/device.h"
#include "gradtune/gradtune.h"
#include "policies/space/sparse_tensors.h"
#include "tests/bench/support/sparse_models.h"
#include "tuner/files/strategy_file.h"

namespace gradtune::bench {
namespace {

using torch::Tensor;

// The usual code of torch.distributed users: gather sparse gradients, all-reduce the rest. Gloo gathers on the host.
void average_by_hand(SparseModel& model, c10d::ProcessGroup& group) {
  const int64_t size = group.getSize();
  std::vector<Tensor> dense;
  for (const Tensor& parameter : model.parameters()) {
    if (!parameter.grad().is_sparse()) {
      dense.push_back(parameter.grad());
      continue;
    }
    const Tensor own = parameter.grad().coalesce().cpu();
    std::vector<Tensor> count{torch::tensor({own._nnz()})};
    std::vector<std::vector<Tensor>> counts{{}};
    for (int64_t r = 0; r < size; ++r) counts[0].push_back(torch::empty({1}, torch::kLong));
    group.allgather(counts, count)->wait();
    int64_t most = 0;
    for (const Tensor& each : counts[0]) most = std::max(most, each.item<int64_t>());
    std::vector<Tensor> indices{torch::zeros({most}, torch::kLong)}, values{torch::zeros({most, own.size(1)})};
    indices[0].slice(0, 0, own._nnz()).copy_(own.indices()[0]);
    values[0].slice(0, 0, own._nnz()).copy_(own.values());
    std::vector<std::vector<Tensor>> all_indices{{}}, all_values{{}};
    for (int64_t r = 0; r < size; ++r) {
      all_indices[0].push_back(torch::empty_like(indices[0]));
      all_values[0].push_back(torch::empty_like(values[0]));
    }
    group.allgather(all_indices, indices)->wait();
    group.allgather(all_values, values)->wait();
    for (int64_t r = 0; r < size; ++r) {
      const int64_t n = counts[0][static_cast<size_t>(r)].item<int64_t>();
      all_indices[0][static_cast<size_t>(r)] = all_indices[0][static_cast<size_t>(r)].slice(0, 0, n);
      all_values[0][static_cast<size_t>(r)] = all_values[0][static_cast<size_t>(r)].slice(0, 0, n);
    }
    parameter.mutable_grad() =
        torch::sparse_coo_tensor(torch::cat(all_indices[0]).unsqueeze(0), torch::cat(all_values[0]) / size, own.sizes())
            .coalesce()
            .to(parameter.device());
  }
  std::vector<Tensor> flat;
  for (const Tensor& gradient : dense) flat.push_back(gradient.flatten());
  std::vector<Tensor> sum{torch::cat(flat).cpu()};
  group.allreduce(sum)->wait();
  int64_t at = 0;
  for (Tensor& gradient : dense) {
    gradient.copy_((sum[0].slice(0, at, at + gradient.numel()) / size).view(gradient.sizes()));
    at += gradient.numel();
  }
}

// The rest of the work around c10d::Reducer follows Python's DistributedDataParallel.
std::unique_ptr<c10d::Reducer> make_ddp(SparseModel& model, const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  constexpr int64_t kFirstBytes = 1 << 20, kBytes = 25 << 20;
  std::vector<Tensor> parameters = model.parameters();
  const std::vector<bool> is_sparse(parameters.size(), false);
  for (Tensor& parameter : parameters) {
    std::vector<Tensor> value{parameter.detach()};
    group->broadcast(value)->wait();
  }
  auto buckets =
      std::get<0>(c10d::compute_bucket_assignment_by_size(parameters, {kFirstBytes, kBytes}, is_sparse, {}, {}));
  std::ranges::reverse(buckets);
  std::unordered_map<size_t, std::string> names;
  for (const auto& entry : model.named_parameters()) names[names.size()] = entry.key();
  return std::make_unique<c10d::Reducer>(parameters, buckets, group, is_sparse, kBytes,
                                         /*find_unused_parameters=*/false, /*gradient_as_bucket_view=*/false, names,
                                         kFirstBytes, /*skip_all_reduce_unused_params=*/false,
                                         /*use_python_reducer=*/false, std::vector<int64_t>());
}

// The strategy of that file, with that option in buckets whose compressors take rows.
void write_with_option(const std::string& path, const core::Option& option) {
  const core::TraitsTable known = compress::known_traits();
  tuner::StrategyFile file = tuner::parse_strategy(tuner::read_file(path, 1 << 20).value(), known).value();
  for (core::Bucket& bucket : file.strategy.buckets) {
    if (!bucket.option.codecs.empty()) bucket.option = option;
  }
  core::set_default_flow(file.strategy);
  tuner::write_file_atomically(path, tuner::to_json(file)).value();
}

class Trainer {
 public:
  Trainer(const std::string& model, const std::string& arm, const std::string& file, torch::Device device)
      : model_(make_sparse_model(model, arm != "ddp", device)) {
    if (!model_) throw std::runtime_error("unknown model " + model);
    // A power of two: dense and sparse updates then have the same bits, with or without rounding of the product.
    sgd_.emplace(model_->parameters(), 0.5);
    if (arm == "ddp") ddp_ = make_ddp(*model_, group_);
    if (arm == "ddp" || arm == "by_hand") return;
    if (arm == "auto") {
      wrap({});
      return;
    }
    if (arm == "file") {
      wrap({.strategy = file, .tuning_budget = 0});
      return;
    }
    std::map<std::string, core::Option> schemes{{"dense", core::plain_all_reduce()}};
    for (const policies::SparseScheme& each : policies::sparse_schemes()) {
      schemes.emplace(each.name, each.make({"rows"}, core::Place::device, group_->getSize()));
    }
    const auto scheme = schemes.find(arm);
    if (scheme == schemes.end()) throw std::runtime_error("unknown arm " + arm);
    // The sparse tensors are known after a step.
    wrap({.tuning_budget = 0});
    step(0);
    wrapped_->export_strategy(file);
    if (group_->getRank() == 0) write_with_option(file, scheme->second);
    wrap({.strategy = file, .tuning_budget = 0});
    first_ = 1;
  }

  int64_t first() const { return first_; }  // the next step
  bool leads() const { return group_->getRank() == 0; }
  const std::optional<Optimizer>& wrapped() const { return wrapped_; }

  float step(int64_t number) {
    wrapped_ ? wrapped_->zero_grad() : sgd_->zero_grad();
    if (ddp_) ddp_->prepare_for_forward();
    if (ddp_) ddp_->rebuild_buckets();
    const Tensor loss = model_->loss(number, group_->getRank());
    if (ddp_) ddp_->prepare_for_backward({});
    loss.backward();
    if (!wrapped_ && !ddp_) average_by_hand(*model_, *group_);
    wrapped_ ? void(wrapped_->step()) : void(sgd_->step());
    return loss.item<float>();
  }

 private:
  void wrap(Options options) {
    options.fidelity = "exact";
    wrapped_.emplace(gradtune::wrap(*sgd_, *model_, group_, options));
  }

  const c10::intrusive_ptr<c10d::ProcessGroup> group_ = init_process_group();
  const std::shared_ptr<SparseModel> model_;
  std::optional<torch::optim::SGD> sgd_;
  std::unique_ptr<c10d::Reducer> ddp_;
  std::optional<Optimizer> wrapped_;
  int64_t first_ = 0;
};

}  // namespace
}  // namespace gradtune::bench

int main(int argc, char** argv) {
  CLI::App app("a rank of the benchmark \"sparse\"");
  std::string model, arm, report, file, device = "cpu";
  int64_t steps = 20;
  app.add_option("--model", model, "lstm or deepfm")->required();
  app.add_option("--arm", arm, "ddp, by_hand, dense, gather, two_step, recursive_doubling, auto or file")->required();
  app.add_option("--device", device, "cpu, cuda or cuda:N");
  app.add_option("--steps", steps);
  app.add_option("--strategy", file, "file that auto exports, file reads and pinned schemes use")->required();
  app.add_option("--report", report, "file of rank 0")->required();
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  torch::manual_seed(1);
  gradtune::bench::Trainer trainer(model, arm, file, open_device(device));
  nlohmann::json out{{"model", model}, {"arm", arm}, {"steps", nlohmann::json::array()}};
  auto began = std::chrono::steady_clock::now();
  for (int64_t step = trainer.first(); step < steps; ++step) {
    const float loss = trainer.step(step);
    const auto now = std::chrono::steady_clock::now();
    const double ms = std::chrono::duration<double, std::milli>(now - began).count();
    began = now;
    out["steps"].push_back({{"step", step}, {"ms", ms}, {"loss", loss}});
  }
  if (trainer.wrapped()) {
    const auto result = trainer.wrapped()->result();
    out["strategy"] = result.strategy;
    out["description"] = result.description;
    out["decided"] = result.decided;
    if (arm == "auto") trainer.wrapped()->export_strategy(file);
  }
  if (trainer.leads()) std::ofstream(report) << out.dump();
  return 0;
}
