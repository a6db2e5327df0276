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

// A model whose parameters are made on the CPU and moved one by one: a C++ module can not be moved to every device.
struct MovedModel : SparseModel {
  MovedModel(bool is_sparse, torch::Device on) : sparse(is_sparse), device(on) {}

  Tensor moved(const std::string& name, const Tensor& parameter) {
    return register_parameter(name, parameter.detach().to(device));
  }
  Tensor table(const std::string& name, int64_t rows, int64_t width) {
    return moved(name, torch::nn::Embedding(rows, width)->weight.detach().mul(0.05));
  }
  Tensor rows_of(const Tensor& weight, const Tensor& rows) const {
    return torch::embedding(weight, rows.to(device), /*padding_idx=*/-1, /*scale_grad_by_freq=*/false, sparse);
  }

  const bool sparse;
  const torch::Device device;
};

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

struct Lstm final : MovedModel {
  Lstm(bool is_sparse, torch::Device on)
      : MovedModel(is_sparse, on), text(words_of("bible -f 'gen1:1-rev22:21' 2>/dev/null")) {
    in = table("in", kLstmRows, kLstmWidth);
    out = table("out", kLstmRows, kLstmWidth);
    const torch::nn::LSTM made(torch::nn::LSTMOptions(kLstmWidth, kLstmWidth));
    for (const auto& each : made->named_parameters()) weights.push_back(moved(each.key(), each.value()));
  }
  Tensor loss(int64_t step, int rank) override {
    torch::manual_seed(1000 * step + rank);
    const Tensor at = torch::randint(text.size(0) - kLength - 1, {kBatch, 1}) + torch::arange(kLength);
    const Tensor targets = text.index({at + 1}).flatten();
    torch::manual_seed(step);
    const Tensor among = torch::cat({targets, torch::randint(kLstmRows, {kNegatives})});
    const Tensor begin = torch::zeros({1, kBatch, kLstmWidth}).to(device);
    const Tensor hidden =
        std::get<0>(torch::lstm(rows_of(in, text.index({at})), {begin, begin}, weights, /*has_biases=*/true,
                                /*num_layers=*/1, /*dropout=*/0, /*train=*/true, /*bidirectional=*/false,
                                /*batch_first=*/true))
            .flatten(0, 1);
    const Tensor scores = hidden.matmul(rows_of(out, among).t());
    return torch::nn::functional::cross_entropy(scores, torch::arange(targets.size(0)).to(device));
  }
  Tensor text;  // rows of its words
  Tensor in, out;
  std::vector<Tensor> weights;
};

struct DeepFm final : MovedModel {
  DeepFm(bool is_sparse, torch::Device on) : MovedModel(is_sparse, on) {
    fields = table("fields", kFields * kFieldRows, kFieldWidth);
    int layer = 0;
    for (const auto& [inputs, outputs] : {std::pair(kFields * kFieldWidth, 256L), {256L, 128L}, {128L, 1L}}) {
      const torch::nn::Linear made(inputs, outputs);
      const std::string name = "deep" + std::to_string(layer++);
      weights.push_back(moved(name + "_weight", made->weight));
      weights.push_back(moved(name + "_bias", made->bias));
    }
  }
  Tensor loss(int64_t step, int rank) override {
    torch::manual_seed(1000 * step + rank);
    // Rank r of a field has a share of about 1 / r.
    const Tensor zipf =
        torch::pow(static_cast<double>(kFieldRows), torch::rand({kClicks, kFields}, torch::kDouble)).to(torch::kLong) -
        1;
    const Tensor mixed = (zipf * 7919 + 13) % kFieldRows + torch::arange(kFields) * kFieldRows;
    const Tensor rows = rows_of(fields, mixed);
    const Tensor pairs = (rows.sum(1).square() - rows.square().sum(1)).sum(1, true) * 0.5;
    const Tensor clicks = (zipf.sum(1, true) % 2).to(torch::kFloat).to(device);
    Tensor deep = rows.flatten(1);
    for (size_t layer = 0; layer < weights.size(); layer += 2) {
      deep = torch::linear(layer == 0 ? deep : torch::relu(deep), weights[layer], weights[layer + 1]);
    }
    return torch::binary_cross_entropy_with_logits(pairs + deep, clicks);
  }
  Tensor fields;
  std::vector<Tensor> weights;
};

}  // namespace

std::shared_ptr<SparseModel> make_sparse_model(const std::string& name, bool has_sparse_gradients,
                                               torch::Device device) {
  if (name == "lstm") return std::make_shared<Lstm>(has_sparse_gradients, device);
  if (name == "deepfm") return std::make_shared<DeepFm>(has_sparse_gradients, device);
  return nullptr;
}

}  // namespace gradtune::bench
