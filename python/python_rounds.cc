// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "python/python_rounds.h"

#include <pybind11/stl.h>

#include <string_view>
#include <utility>

#include "engine/core/hash.h"
#include "hooks/round_options.h"

namespace gradtune {

PythonRounds::PythonRounds(py::object source, std::shared_ptr<RegistrationCount> count,
                           const c10::intrusive_ptr<c10d::ProcessGroup>& group, const py::dict& options,
                           const RoundOptions& of_rounds, const tuner::RoundShape& first)
    : PythonSession(std::move(source), std::move(count), group, options, Brings::changes, of_rounds.fragments) {
  run([&](Session&) {
    rounds_ = std::make_unique<Rounds>(sessions(),
                                       OuterStep::Rates{.lr = of_rounds.outer_lr, .momentum = of_rounds.outer_momentum},
                                       tuner::RoundLength(allowed(of_rounds), first), of_rounds.uneven);
  });
}

bool PythonRounds::ended(const std::function<bool(Rounds&)>& call) {
  bool ended = false;
  run([&](Session&) {
    ended = call(*rounds_);
    if (ended) update_ended();
  });
  return ended;
}

bool PythonRounds::end_update(size_t /*optimizer*/) {
  return ended([](Rounds& rounds) { return rounds.end_update(); });
}

bool PythonRounds::end_round(const py::function& round_ended) {
  return ended([&](Rounds& rounds) {
    return rounds.end_round([&] {
      const py::gil_scoped_acquire acquire;
      round_ended();
    });
  });
}

bool PythonRounds::complete() {
  return ended([](Rounds& rounds) { return rounds.complete(); });
}

void PythonRounds::save_checkpoint(const std::string& folder) {
  run([&](Session&) { rounds_->save_checkpoint(folder); });
}

void PythonRounds::load_checkpoint(const std::string& folder) {
  run([&](Session&) { rounds_->load_checkpoint(folder); });
}

void PythonRounds::restore(int64_t rounds, const tuner::RoundShape& round, const std::vector<torch::Tensor>& momenta) {
  run([&](Session& session) {
    core::Hasher hasher;
    for (const torch::Tensor& momentum : momenta) {
      const torch::Tensor bytes = momentum.detach().cpu().contiguous();
      hasher.add(std::string_view(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()));
    }
    session.must_agree("states of a round's end", {{"state",
                                                    {{"rounds", std::to_string(rounds)},
                                                     {"updates", std::to_string(round.updates)},
                                                     {"hash of momenta", std::to_string(hasher.value())}}}});
    rounds_->restore(rounds, round, momenta);
  });
}

void PythonRounds::allow(const tuner::UpdatesARound& allowed) {
  run([&](Session&) { rounds_->allow(allowed); });
}

}  // namespace gradtune
