// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/support/sparse_models.h"

#include <cstdio>
#include <functional>
#include <sstream>
#include <vector>

namespace gradtune::bench {
namespace {

using torch::Tensor;

constexpr int64_t kLstmRows = 60'000, kLstmWidth = 256, kNegatives = 512, kBatch = 16, kLength = 32;
constexpr int64_t kFields = 26, kFieldRows = 75'000, kFieldWidth = 16, kClicks = 512;

torch::nn::Embedding table(int64_t rows, int64_t width, bool sparse) {
  torch::nn::Embedding made(torch::nn::EmbeddingOptions(rows, width).sparse(sparse));
  made->weight.data().mul_(0.05);
  return made;
}

Tensor words_of(const std::string& command) {
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
  return torch::tensor(words);
}

struct Lstm final : SparseModel {
  explicit Lstm(bool sparse) : text(words_of("bible -f 'gen1:1-rev22:21' 2>/dev/null")) {
    in = register_module("in", table(kLstmRows, kLstmWidth, sparse));
    out = register_module("out", table(kLstmRows, kLstmWidth, sparse));
    lstm = register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(kLstmWidth, kLstmWidth).batch_first(true)));
  }
  Tensor loss(int64_t step, int rank) override {
    torch::manual_seed(1000 * step + rank);
    const Tensor at = torch::randint(text.size(0) - kLength - 1, {kBatch, 1}) + torch::arange(kLength);
    const Tensor targets = text.index({at + 1}).flatten();
    torch::manual_seed(step);
    const Tensor among = torch::cat({targets, torch::randint(kLstmRows, {kNegatives})});
    const Tensor hidden = std::get<0>(lstm->forward(in->forward(text.index({at})))).flatten(0, 1);
    const Tensor scores = hidden.matmul(out->forward(among).t());
    return torch::nn::functional::cross_entropy(scores, torch::arange(targets.size(0)));
  }
  Tensor text;  // rows of its words
  torch::nn::Embedding in{nullptr}, out{nullptr};
  torch::nn::LSTM lstm{nullptr};
};

struct DeepFm final : SparseModel {
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

}  // namespace

std::shared_ptr<SparseModel> make_sparse_model(const std::string& name, bool has_sparse_gradients) {
  if (name == "lstm") return std::make_shared<Lstm>(has_sparse_gradients);
  if (name == "deepfm") return std::make_shared<DeepFm>(has_sparse_gradients);
  return nullptr;
}

}  // namespace gradtune::bench
