// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// usage: bench_overlap_cost [--rounds 21] BUILD_FOLDER OUTPUT.json
//
// Measures the cost of option forward_overlap in a training step, on one rank and one core: no other rank is waited
// for, so nothing is gained. Twins of a transformer of 3.2 M parameters in 52 tensors train in turn. Rows are whole
// steps:
// - off: forward_overlap false, beside a twin without gradtune
// - ready: forward_overlap true, and no bucket is late; beside `off`
// - on: forward_overlap true, and all buckets are late; beside `off` with the same buckets
// - watch: the forward pass alone with a watch armed for all of it, beside one without
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/compress/compressor.h"
#include "gradtune/gradtune.h"
#include "hooks/operator_watch.h"
#include "tests/bench/support/results.h"
#include "tests/temp_folder.h"
#include "tuner/files/strategy_file.h"

namespace gradtune::bench {
namespace {

constexpr int kBlock = 6;  // consecutive steps of one twin

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

struct LanguageImpl : torch::nn::Module {
  LanguageImpl() {
    using namespace torch::nn;
    words = register_module("words", Embedding(256, 256));
    for (int layer = 0; layer < 4; ++layer) {
      layers.push_back(register_module(
          "layer" + std::to_string(layer),
          TransformerEncoderLayer(TransformerEncoderLayerOptions(256, 4).dim_feedforward(1024).dropout(0))));
    }
    norm = register_module("norm", LayerNorm(LayerNormOptions({256})));
    out = register_module("out", Linear(256, 256));
  }
  torch::Tensor forward(const torch::Tensor& text) {
    torch::Tensor x = words->forward(text);
    for (auto& layer : layers) x = layer->forward(x);
    return out->forward(norm->forward(x));
  }
  torch::Tensor loss(const torch::Tensor& text) {
    return torch::nn::functional::cross_entropy(forward(text).flatten(0, 1), text.flatten());
  }
  torch::nn::Embedding words{nullptr};
  std::vector<torch::nn::TransformerEncoderLayer> layers;
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(Language);

// Buckets of 1 MiB, all late or none.
std::string strategy_file(const torch::nn::Module& module, bool late, const std::string& path) {
  core::GradientTable table;
  for (const auto& item : module.named_parameters()) {
    table.tensors.push_back(
        {.name = item.key(), .shape = item.value().sizes().vec(), .numel = item.value().numel(), .dtype = {}});
  }
  std::ranges::reverse(table.tensors);
  const core::Option option = core::parse_option("all_reduce", compress::known_traits()).value();
  core::Strategy strategy = core::uniform(core::cut(table, 1 << 20, 1 << 20, /*split=*/false), option, 2);
  for (core::Bucket& bucket : strategy.buckets) bucket.due = late ? core::Due::forward : core::Due::backward;
  const auto file = tuner::strategy_file(table, 1, core::Fidelity::exact, late ? "late" : "not late", strategy);
  tuner::write_file_atomically(path, tuner::to_json(file)).value();
  return path;
}

// A model that trains alone, and its settings.
class Twin {
 public:
  explicit Twin(const torch::Tensor& text) : text_(text), sgd_(model_->parameters(), Sgd(1e-3).momentum(0.9)) {}
  Twin(const torch::Tensor& text, bool overlap, bool late, const c10::intrusive_ptr<c10d::ProcessGroup>& group)
      : Twin(text) {
    const test::TempFolder folder;
    const Options options{.fidelity = "exact",
                          .strategy = strategy_file(*model_, late, folder.path("strategy.json")),
                          .tuning_budget = 0,
                          .quiet = true,
                          .forward_overlap = overlap};
    optimizer_.emplace(wrap(sgd_, *model_, group, options));
  }

  // ms, the median.
  double block() {
    std::vector<double> steps;
    for (int step = 0; step < kBlock; ++step) {
      const double begin_ms = now_ms();
      optimizer_ ? optimizer_->zero_grad() : sgd_.zero_grad();
      model_->loss(text_).backward();
      optimizer_ ? optimizer_->step() : static_cast<void>(sgd_.step());
      steps.push_back(now_ms() - begin_ms);
    }
    return median(steps);
  }
  int64_t late_updates() const { return optimizer_->progress().late_updates; }

 private:
  using Sgd = torch::optim::SGDOptions;
  const torch::Tensor text_;
  Language model_;
  torch::optim::SGD sgd_;
  std::optional<Optimizer> optimizer_;
};

class Ignore final : public OperatorWatch::Listener {
  void before_operator() noexcept override {}
  void before_use(int32_t) noexcept override {}
};

double forward_block(Language& model, const torch::Tensor& text, OperatorWatch* watch) {
  std::vector<double> passes;
  for (int pass = 0; pass < kBlock; ++pass) {
    const double begin_ms = now_ms();
    if (watch != nullptr) watch->arm();
    model->loss(text);
    if (watch != nullptr) watch->disarm();
    passes.push_back(now_ms() - begin_ms);
  }
  return median(passes);
}

Row row(const std::string& name, const std::vector<double>& values, const std::vector<double>& anchors,
        std::optional<double> goal) {
  std::vector<double> ratios;
  for (size_t r = 0; r < values.size(); ++r) ratios.push_back(values[r] / anchors[r]);
  std::ranges::sort(ratios);
  Row row{.name = name,
          .value = median(values),
          .unit = "ms",
          .anchor = median(anchors),
          .ratio = ratios[ratios.size() / 2],
          .spread = {ratios[ratios.size() / 4], ratios[ratios.size() * 3 / 4]},
          .goal = goal};
  if (goal) row.met = row.ratio <= *goal;
  std::printf("%-6s %8.2f ms, anchor %8.2f, ratio %.4f [%.4f, %.4f]\n", name.c_str(), row.value, row.anchor, row.ratio,
              row.spread.front(), row.spread.back());
  return row;
}

int run(int argc, char** argv) {
  int rounds = 21;
  std::vector<std::string> rest;
  for (int a = 1; a < argc; ++a) {
    const std::string argument(argv[a]);
    if (argument == "--rounds" && a + 1 < argc) {
      rounds = std::atoi(argv[++a]);
    } else {
      rest.push_back(argument);
    }
  }
  if (rest.size() != 2 || rounds < 1) {
    std::fprintf(stderr, "usage: bench_overlap_cost [--rounds 21] BUILD_FOLDER OUTPUT.json\n");
    return 2;
  }
  at::set_num_threads(1);
  torch::manual_seed(1);
  const auto group = init_process_group();
  const torch::Tensor text = torch::randint(0, 256, {32, 4});
  Twin plain(text), off(text, false, false, group), ready(text, true, false, group), on(text, true, true, group);
  Language model;
  std::vector<OperatorWatch::Watched> watched;
  for (const torch::Tensor& p : model->parameters()) watched.push_back({OperatorWatch::memory_of(p), 0});
  Ignore ignore;
  OperatorWatch watch(ignore);
  watch.watch(watched);
  std::vector<double> plain_ms, off_ms, ready_ms, on_ms, armed_ms, unarmed_ms;
  const std::vector<std::pair<std::vector<double>*, std::function<double()>>> turns = {
      {&plain_ms, [&] { return plain.block(); }},
      {&off_ms, [&] { return off.block(); }},
      {&ready_ms, [&] { return ready.block(); }},
      {&on_ms, [&] { return on.block(); }},
      {&armed_ms, [&] { return forward_block(model, text, &watch); }},
      {&unarmed_ms, [&] { return forward_block(model, text, nullptr); }}};
  for (int r = -2; r < rounds; ++r) {
    for (size_t t = 0; t < turns.size(); ++t) {
      const auto& [values, block] = turns[r % 2 == 0 ? t : turns.size() - 1 - t];
      const double ms = block();
      if (r >= 0) values->push_back(ms);  // earlier rounds warm up, and observe the reads of forward
    }
  }
  std::printf("late updates: %ld\n", static_cast<long>(on.late_updates()));
  write_results(argc, argv,
                {row("off", off_ms, plain_ms, std::nullopt), row("ready", ready_ms, off_ms, 1.01),
                 row("on", on_ms, off_ms, 1.01), row("watch", armed_ms, unarmed_ms, 1.01)});
  return on.late_updates() > 0 ? 0 : 1;
}

}  // namespace
}  // namespace gradtune::bench

int main(int argc, char** argv) { return gradtune::bench::run_benchmark(argc, argv, gradtune::bench::run); }
