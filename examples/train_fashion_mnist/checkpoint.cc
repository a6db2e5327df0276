// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/train_fashion_mnist/checkpoint.h"

#include <torch/serialize.h>

#include <filesystem>
#include <fstream>

namespace fs = std::filesystem;

// "step-N"; empty if there is none yet.
std::string Checkpoints::latest() const {
  std::string name;
  std::getline(std::ifstream(fs::path(folder_) / "latest") >> std::ws, name);
  return name;
}

int64_t Checkpoints::load(torch::nn::Sequential& model, torch::optim::SGD& sgd) const {
  const std::string name = folder_.empty() ? "" : latest();
  if (name.empty()) return 0;
  torch::load(model, fs::path(folder_) / name / "model.pt");
  torch::load(sgd, fs::path(folder_) / name / "optimizer.pt");
  return std::stoll(name.substr(name.find('-') + 1));
}

void Checkpoints::load(gradtune::Optimizer& tuned) const {
  const std::string name = folder_.empty() ? "" : latest();
  if (!name.empty()) tuned.load_checkpoint(fs::path(folder_) / name);
}

void Checkpoints::save(int64_t steps, torch::nn::Sequential& model, torch::optim::SGD& sgd, gradtune::Optimizer* tuned,
                       bool writes) const {
  if (folder_.empty() || steps % every_ != 0) return;
  const std::string name = "step-" + std::to_string(steps);
  const fs::path to = fs::path(folder_) / name;
  if (tuned != nullptr) tuned->save_checkpoint(to);
  if (!writes) return;
  fs::create_directories(to);
  torch::save(model, to / "model.pt");
  torch::save(sgd, to / "optimizer.pt");
  // The previous checkpoint is valid until `latest` names the new one.
  const std::string before = latest();
  const fs::path line = fs::path(folder_) / "latest.new";
  std::ofstream(line) << name << "\n";
  fs::rename(line, fs::path(folder_) / "latest");
  if (!before.empty() && before != name) fs::remove_all(fs::path(folder_) / before);
}
