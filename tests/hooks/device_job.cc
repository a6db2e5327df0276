// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/hooks/device_job.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "hooks/session.h"
#include "hooks/trained_by.h"
#include "tests/engine/exec/gradient_arenas.h"
#include "tests/temp_folder.h"
#include "tuner/files/file_io.h"
#include "tuner/files/strategy_file.h"

namespace gradtune::test {

namespace {

constexpr int64_t kPlaces = 5, kInputs = 4, kWidth = 16, kHeads = 2, kRows = 5000;

// A layer without bias whose inputs and outputs are on the host, even if its weight is not.
struct Offloaded : torch::autograd::Function<Offloaded> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const torch::Tensor* weight) {
    context->save_for_backward({x});
    context->saved_data["weight"] = reinterpret_cast<int64_t>(weight);
    const torch::NoGradGuard no_grad;
    return torch::linear(x.to(weight->device()), *weight).to(torch::kCPU);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto* const weight = reinterpret_cast<const torch::Tensor*>(context->saved_data["weight"].toInt());
    const torch::AutoGradMode enable(true);
    const torch::Tensor x = context->get_saved_variables()[0].detach().to(weight->device());
    torch::linear(x, *weight).backward(gradients[0].to(weight->device()));
    return {torch::matmul(gradients[0], weight->detach().to(torch::kCPU)), torch::Tensor()};
  }
};

}  // namespace

DeviceModel::DeviceModel(DeviceModelKind kind, c10::Device device, torch::ScalarType type) : kind_(kind) {
  using torch::nn::LayerNormOptions, torch::nn::LayerNorm, torch::nn::Linear;
  if (kind == DeviceModelKind::mlp) {
    add(*make_mlp(1), "", device, type);
    return;
  }
  torch::manual_seed(1);
  if (kind == DeviceModelKind::nested) {
    add(*Linear(torch::nn::LinearOptions(20, 64).bias(false)), "first_", device, type);
    add(*Linear(torch::nn::LinearOptions(64, 5).bias(false)), "second_", device, type);
    return;
  }
  if (kind == DeviceModelKind::table) {
    add(*torch::nn::Embedding(kRows, kWidth), "table_", device, type);
    add(*Linear(kWidth, 5), "scores_", device, type);
    return;
  }
  if (kind == DeviceModelKind::images) {
    add(*Linear(28 * 28, 64), "wide_", device, type);
    add(*Linear(64, 10), "scores_", device, type);
    return;
  }
  add(*Linear(kInputs, kWidth), "inputs_", device, type);
  add(*LayerNorm(LayerNormOptions({kWidth})), "norm_", device, type);
  add(*Linear(kWidth, 3 * kWidth), "attention_", device, type);
  add(*Linear(kWidth, kWidth), "attended_", device, type);
  add(*LayerNorm(LayerNormOptions({kWidth})), "wide_norm_", device, type);
  add(*Linear(kWidth, 4 * kWidth), "wide_", device, type);
  add(*Linear(4 * kWidth, kWidth), "narrow_", device, type);
  add(*Linear(kWidth, 5), "scores_", device, type);
}

void DeviceModel::add(const torch::nn::Module& on_cpu, const std::string& prefix, c10::Device device,
                      torch::ScalarType type) {
  for (const auto& parameter : on_cpu.named_parameters()) {
    std::string name = prefix + parameter.key();
    std::ranges::replace(name, '.', '_');
    all_.push_back(register_parameter(name, parameter.value().detach().to(type).to(device)));
  }
}

torch::Tensor DeviceModel::mlp(torch::Tensor x) const {
  for (size_t layer = 0; layer < all_.size(); layer += 2) {
    x = torch::linear(layer == 0 ? x : torch::relu(x), all_[layer], all_[layer + 1]);
  }
  return x;
}

torch::Tensor DeviceModel::transformer(torch::Tensor x) const {
  const int64_t batch = x.size(0);
  size_t next = 0;
  const auto linear = [&](const torch::Tensor& in) {
    next += 2;
    return torch::linear(in, all_[next - 2], all_[next - 1]);
  };
  // Avoids layer_norm, which LibTorch computes in another way on devices without their own.
  const auto norm = [&](const torch::Tensor& in) {
    next += 2;
    const torch::Tensor centred = in - in.mean(-1, /*keepdim=*/true);
    const torch::Tensor scale = (centred.square().mean(-1, /*keepdim=*/true) + 1e-5).rsqrt();
    return centred * scale * all_[next - 2] + all_[next - 1];
  };
  x = linear(x.view({batch, kPlaces, kInputs}));
  const torch::Tensor heads =
      linear(norm(x)).view({batch, kPlaces, 3, kHeads, kWidth / kHeads}).permute({2, 0, 3, 1, 4}).contiguous();
  const torch::Tensor keys = heads[1].transpose(-1, -2).contiguous();
  const torch::Tensor seen = torch::matmul(torch::matmul(heads[0], keys).softmax(-1), heads[2]);
  x = x + linear(seen.transpose(1, 2).reshape({batch, kPlaces, kWidth}));
  const torch::Tensor wide = torch::gelu(linear(norm(x)));
  x = x + linear(wide);
  return linear(x.mean(1));
}

torch::Tensor DeviceModel::nested(const torch::Tensor& x) const {
  const torch::Tensor wide = torch::relu(torch::linear(x, all_[0])).to(torch::kCPU);
  return Offloaded::apply(wide, &all_[1]).to(x.device());
}

// The rows differ between ranks and steps; some are repeated.
torch::Tensor DeviceModel::table(const torch::Tensor& x) const {
  const torch::Tensor rows = (x.slice(1, 0, kPlaces).abs() * 1000).to(torch::kLong).remainder(kRows);
  return torch::linear(torch::embedding(all_[0], rows, -1, false, /*sparse=*/true).sum(1), all_[1], all_[2]);
}

torch::Tensor DeviceModel::loss(const Data& data) const {
  const c10::Device device = all_[0].device();
  const torch::Tensor inputs = data.inputs.to(device);
  const torch::Tensor scores = kind_ == DeviceModelKind::transformer ? transformer(inputs)
                               : kind_ == DeviceModelKind::nested    ? nested(inputs)
                               : kind_ == DeviceModelKind::table     ? table(inputs)
                                                                     : mlp(inputs);
  return torch::nn::functional::cross_entropy(scores, data.targets.to(device));
}

Parameters DeviceModel::on_cpu() const {
  Parameters copies;
  for (const torch::Tensor& parameter : all_) copies.push_back(parameter.detach().cpu().clone());
  return copies;
}

namespace {

// Rank 0 writes a strategy file with that option for all of the model's buckets.
std::string strategy_of(const DeviceJob& job, const DeviceModel& model, int size) {
  core::GradientTable table;
  for (const auto& parameter : model.named_parameters()) {
    table.tensors.push_back({.name = parameter.key(),
                             .shape = parameter.value().sizes().vec(),
                             .numel = parameter.value().numel(),
                             .dtype = job.type == torch::kFloat  ? core::DType::f32
                                      : job.type == torch::kHalf ? core::DType::f16
                                                                 : core::DType::bf16});
  }
  std::ranges::reverse(table.tensors);
  const core::Strategy strategy = exec::make_strategy(table, job.option, 9'000, 2);
  return tuner::to_json(
      tuner::strategy_file(table, size, core::parse_fidelity(job.fidelity).value(), "of the test", strategy));
}

}  // namespace

Parameters train(const Rank& rank, const c10::intrusive_ptr<c10d::ProcessGroup>& group, const DeviceJob& job,
                 const std::function<std::shared_ptr<void>()>& planted) {
  DeviceModel model(job.model, job.device, job.type);
  Options options = quiet(
      {.fidelity = job.fidelity, .tuning_budget = job.tuning_budget, .timeout = job.timeout_s, .host_threads = 1});
  const std::string file = TempFolder().path("strategy.json");
  options.collectives = job.collectives;
  if (!job.journal.empty()) options.journal = job.journal;
  if (!job.option.empty()) {
    if (rank.rank == 0) tuner::write_file_atomically(file, strategy_of(job, model, rank.size)).value();
    options.strategy = file;
  }
  torch::optim::SGD sgd(model.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  const MakeTrained make = [&, inner = trained_by({&sgd}, model)](const Settings& settings) {
    Trained trained = inner(settings);
    trained.make_kernels = job.make_kernels;
    return trained;
  };
  Session session(make, group, options);
  if (job.averaged) session.on_averaged([&job](const auto&) { job.averaged(); });
  const std::shared_ptr<void> there = planted ? planted() : nullptr;
  const TempFolder checkpoints;
  for (int step = 0; step < job.steps; ++step) {
    Data data = job.data ? job.data(step) : make_data(rank.rank, step, 8, job.type);
    if (step == job.bad_step && rank.rank == 0) data.inputs[0][0] = std::numeric_limits<float>::infinity();
    if (step == job.reloaded_step) {
      session.save_checkpoint(checkpoints.path("checkpoint"));
      session.load_checkpoint(checkpoints.path("checkpoint"));
    }
    session.zero_grad();
    const bool is_left = step == job.left_step && rank.rank == 0;
    if (is_left) {
      model.parameters().front().register_hook([](const torch::Tensor&) { throw std::runtime_error("of the user"); });
    }
    if (step == job.changed_step) {
      model.parameters().front().register_hook([changed = model.parameters()](const torch::Tensor&) {
        const torch::NoGradGuard no_grad;
        for (const torch::Tensor& parameter : changed) torch::Tensor(parameter).sub_(0.1);
      });
    }
    try {
      model.loss(data).backward();
    } catch (const std::runtime_error&) {
      if (!is_left) throw;
    }
    if (step != job.bad_step) session.step(nullptr);
  }
  return model.on_cpu();
}

bool same_bits(const Parameters& a, const Parameters& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    const torch::Tensor here = a[i].contiguous(), there = b[i].contiguous();
    if (std::memcmp(here.const_data_ptr(), there.const_data_ptr(), here.nbytes()) != 0) return false;
  }
  return a.size() == b.size();
}

}  // namespace gradtune::test
