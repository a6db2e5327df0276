// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A rank of the benchmark "sparse": trains one of two models whose tables hold most of their parameters, and writes how
// long each step took.
//   lstm    A word-level language model. Words of the text are hashed to rows. The softmax is over the words of the
//           batch and 512 sampled others, the same on all ranks, so that both tables are updated by rows.
//   deepfm  A factorization machine and a small network over 26 fields of one table. Ids are Zipf-distributed.
// Arms:
//   dense      Gradients are dense, in DDP's buckets.
//   by_hand    Sparse gradients are all-gathered after backward, indices and values, as users of torch.distributed do.
//              The rest is all-reduced as one.
//   gather     gradtune with the baseline of sparse jobs pinned.
//   zen, auto  gradtune with that policy.
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "gradtune/gradtune.h"

namespace {

using torch::Tensor;

constexpr int64_t kLstmRows = 60'000, kLstmWidth = 256, kNegatives = 512, kBatch = 16, kLength = 32;
constexpr int64_t kFields = 26, kFieldRows = 75'000, kFieldWidth = 16, kClicks = 512;

torch::nn::Embedding table(int64_t rows, int64_t width, bool sparse) {
  torch::nn::Embedding made(torch::nn::EmbeddingOptions(rows, width).sparse(sparse));
  made->weight.data().mul_(0.05);
  return made;
}

struct Job : torch::nn::Module {
  virtual Tensor loss(int64_t step, int rank) = 0;
};

std::vector<int64_t> words_of(const std::string& command) {
  std::string text;
  if (FILE* const pipe = popen(command.c_str(), "r")) {
    char buffer[1 << 16];
    for (size_t count = 1; count > 0;) {
      count = std::fread(buffer, 1, sizeof buffer, pipe);
      text.append(buffer, count);
    }
    pclose(pipe);
  }
  std::istringstream stream(text);
  std::vector<int64_t> words;
  for (std::string word; stream >> word;) {
    words.push_back(static_cast<int64_t>(std::hash<std::string>()(word) % kLstmRows));
  }
  if (words.empty()) throw std::runtime_error("the command \"bible\" prints no text; apt-get install bible-kjv");
  return words;
}

struct Lstm final : Job {
  explicit Lstm(bool sparse) : words(words_of("bible -f 'gen1:1-rev22:21' 2>/dev/null")) {
    in = register_module("in", table(kLstmRows, kLstmWidth, sparse));
    out = register_module("out", table(kLstmRows, kLstmWidth, sparse));
    lstm = register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(kLstmWidth, kLstmWidth).batch_first(true)));
  }
  Tensor loss(int64_t step, int rank) override {
    torch::manual_seed(1000 * step + rank);
    const Tensor text = torch::tensor(words),
                 last = torch::randint(static_cast<int64_t>(words.size()) - kLength - 1, {kBatch, 1});
    const Tensor at = last + torch::arange(kLength);
    const Tensor targets = text.index({at + 1}).flatten();
    torch::manual_seed(step);
    const Tensor among = torch::cat({targets, torch::randint(kLstmRows, {kNegatives})});
    const Tensor hidden = std::get<0>(lstm->forward(in->forward(text.index({at})))).flatten(0, 1);
    const Tensor scores = hidden.matmul(out->forward(among).t());
    return torch::nn::functional::cross_entropy(scores, torch::arange(targets.size(0)));
  }
  std::vector<int64_t> words;
  torch::nn::Embedding in{nullptr}, out{nullptr};
  torch::nn::LSTM lstm{nullptr};
};

struct DeepFm final : Job {
  explicit DeepFm(bool sparse) {
    fields = register_module("fields", table(kFields * kFieldRows, kFieldWidth, sparse));
    deep = register_module(
        "deep", torch::nn::Sequential(torch::nn::Linear(kFields * kFieldWidth, 256), torch::nn::ReLU(),
                                      torch::nn::Linear(256, 128), torch::nn::ReLU(), torch::nn::Linear(128, 1)));
  }
  Tensor loss(int64_t step, int rank) override {
    torch::manual_seed(1000 * step + rank);
    // Rank r of a field has a share of about 1 / r.
    const Tensor zipf =
        torch::pow(static_cast<double>(kFieldRows), torch::rand({kClicks, kFields}, torch::kDouble)).to(torch::kLong) -
        1;
    const Tensor mixed = (zipf * 7919 + 13) % kFieldRows + torch::arange(kFields) * kFieldRows;
    const Tensor rows = fields->forward(mixed);
    const Tensor pairs = (rows.sum(1).square() - rows.square().sum(1)).sum(1, true) * 0.5;
    const Tensor clicks = (zipf.sum(1, true) % 2).to(torch::kFloat);
    return torch::binary_cross_entropy_with_logits(pairs + deep->forward(rows.flatten(1)), clicks);
  }
  torch::nn::Embedding fields{nullptr};
  torch::nn::Sequential deep{nullptr};
};

// What users of torch.distributed write: gather what is sparse, all-reduce the rest.
void average_by_hand(Job& job, c10d::ProcessGroup& group) {
  const int64_t size = group.getSize();
  std::vector<Tensor> dense;
  for (const Tensor& parameter : job.parameters()) {
    if (!parameter.grad().is_sparse()) {
      dense.push_back(parameter.grad());
      continue;
    }
    const Tensor own = parameter.grad().coalesce();
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
            .coalesce();
  }
  std::vector<Tensor> flat;
  for (const Tensor& gradient : dense) flat.push_back(gradient.flatten());
  std::vector<Tensor> sum{torch::cat(flat)};
  group.allreduce(sum)->wait();
  int64_t at = 0;
  for (Tensor& gradient : dense) {
    gradient.copy_((sum[0].slice(0, at, at + gradient.numel()) / size).view_as(gradient));
    at += gradient.numel();
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("a rank of the benchmark \"sparse\"");
  std::string model, arm, report;
  int64_t steps = 20;
  app.add_option("--model", model, "lstm or deepfm")->required();
  app.add_option("--arm", arm, "dense, by_hand, gather, zen or auto")->required();
  app.add_option("--steps", steps);
  app.add_option("--report", report, "file of rank 0")->required();
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  auto group = gradtune::init_process_group();
  const int rank = group->getRank();
  torch::manual_seed(1);
  std::shared_ptr<Job> job;
  if (model == "lstm") job = std::make_shared<Lstm>(arm != "dense");
  if (model == "deepfm") job = std::make_shared<DeepFm>(arm != "dense");
  if (!job) return std::fprintf(stderr, "unknown model\n"), 2;
  torch::optim::Adagrad adagrad(job->parameters(), 0.05);
  std::optional<gradtune::Optimizer> wrapped;
  if (arm != "by_hand") {
    gradtune::Options options{.fidelity = "exact"};
    if (arm == "dense" || arm == "gather") options.tuning_budget = 0;
    if (arm == "zen") options.policy = "zen";
    wrapped.emplace(gradtune::wrap(adagrad, *job, group, options));
  }
  nlohmann::json out{{"model", model}, {"arm", arm}, {"steps", nlohmann::json::array()}};
  auto began = std::chrono::steady_clock::now();
  for (int64_t step = 0; step < steps; ++step) {
    wrapped ? wrapped->zero_grad() : adagrad.zero_grad();
    const Tensor loss = job->loss(step, rank);
    loss.backward();
    if (!wrapped) average_by_hand(*job, *group);
    wrapped ? void(wrapped->step()) : void(adagrad.step());
    const auto now = std::chrono::steady_clock::now();
    const double ms = std::chrono::duration<double, std::milli>(now - began).count();
    began = now;
    out["steps"].push_back({{"ms", ms}, {"loss", loss.item<float>()}});
  }
  if (wrapped) out["strategy"] = wrapped->result().strategy;
  if (rank == 0) std::ofstream(report) << out.dump();
  return 0;
}
