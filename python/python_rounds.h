// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A session that Python owns and that trains in rounds (hooks/rounds.h). The session's steps are rounds. Python calls
// begin_update() and end_update() around each update, as of any session.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hooks/rounds.h"
#include "python/python_session.h"

namespace gradtune {

class PythonRounds final : public PythonSession {
 public:
  // As PythonSession and Rounds.
  PythonRounds(py::object source, std::shared_ptr<RegistrationCount> count,
               const c10::intrusive_ptr<c10d::ProcessGroup>& group, const py::dict& options,
               const RoundOptions& of_rounds, const tuner::RoundShape& first);

  void begin_update() override {}
  bool end_update(size_t optimizer) override;  // returns true if this ended a round
  void save_checkpoint(const std::string& folder) override;
  void load_checkpoint(const std::string& folder) override;

  bool end_round(const py::function& round_ended);  // called for each round that ends meanwhile
  bool complete();
  Rounds::Progress round_progress() const { return rounds_->progress(); }
  tuner::RoundShape shape() const { return rounds_->round(); }
  bool take_lost_here() { return rounds_->take_lost_here(); }
  std::vector<torch::Tensor> outer_momenta() const { return rounds_->momenta(); }
  // As Rounds::restore(), with an error on all ranks if they differ.
  void restore(int64_t rounds, const tuner::RoundShape& round, const std::vector<torch::Tensor>& momenta);
  void allow(const tuner::UpdatesARound& allowed);

 private:
  bool ended(const std::function<bool(Rounds&)>& call);

  std::unique_ptr<Rounds> rounds_;
};

}  // namespace gradtune
