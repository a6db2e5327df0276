// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The record of one run, for people (a table of the parts of a step's time) and as a JSON file (schema
// gradtune.report/1).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gradtune/gradtune.h"

class Record {
 public:
  explicit Record(int world_size) : world_size_(world_size), last_(std::chrono::steady_clock::now()) {}

  // Called at the end of each step; the optimizer is null if gradtune is not used.
  void add_step(double loss, const gradtune::Optimizer* optimizer);

  double mean_loss(size_t last_steps) const;

  // Medians, in ms, for the baseline and the committed strategy: compute, encode, decode, exposed communication.
  // They are taken from the blocks of the confirmation, which alternate, so that varying load affects both alike.
  std::string where_time_went(const gradtune::Optimizer& optimizer) const;

  void write(const std::string& path, const gradtune::Optimizer* optimizer) const;

  std::optional<double> accuracy;    // percent
  std::optional<double> perplexity;  // per byte

 private:
  struct Step {
    double ms = 0;
    double loss = 0;
    gradtune::Optimizer::Progress progress;
  };
  struct Parts {
    double total = 0, compute = 0, encode = 0, decode = 0, wait = 0;
  };
  std::optional<Parts> medians(const std::function<bool(const Step&)>& wanted) const;
  std::optional<Parts> imported() const;
  std::optional<Parts> before() const;
  // Medians over blocks of the last confirmation: for the committed strategy, or for the other one.
  std::optional<Parts> confirmed(const std::string& committed, bool is_committed) const;

  const int world_size_;
  std::chrono::steady_clock::time_point last_;
  std::vector<Step> steps_;
};
