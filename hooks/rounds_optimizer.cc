// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gradtune/rounds.h"
#include "hooks/finite_state.h"
#include "hooks/refusal.h"
#include "hooks/round_options.h"
#include "hooks/rounds.h"
#include "hooks/rounds_file.h"
#include "hooks/session.h"
#include "hooks/trained_by.h"

namespace gradtune {

// Two states: synchronous while `rounds_` is null, as with wrap(), and in rounds from then on. Other ranks' optimizers
// have moments of their own in rounds, so there is no way back.
class RoundsOptimizer::State {
 public:
  State(torch::optim::Optimizer& inner, torch::nn::Module& module, c10::intrusive_ptr<c10d::ProcessGroup> group,
        const RoundOptions& of_rounds, Options options)
      : inner_(inner),
        module_(module),
        group_(std::move(group)),
        of_rounds_(of_rounds),
        options_(std::move(options)),
        length_(allowed(of_rounds), {.updates = of_rounds.least}) {
    Options dense = options_;
    if (of_rounds.fragments > 1) dense.strategy = "none";  // the files are of fragments
    open(Arrival::hooks, dense, {});
    session().must_agree("options of rounds", describe(of_rounds));
    check_fragments(of_rounds.fragments, session().trained().size());
    session().on_averaged([this](const auto& received) { length_.learn(received.report); });
  }

  // Training may go on, with this rank's parameters.
  ~State() {
    if (!rounds_ || std::uncaught_exceptions() > exceptions_) return;
    try {
      rounds_->complete();
    } catch (const std::exception&) {
      // The session knows, and tells the other ranks.
    }
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  Session& session() { return *sessions_.front(); }
  Optimizer::Result result() const { return result_of(sessions_); }
  void export_strategy(const std::string& path) {
    for (const auto& session : sessions_) session->export_strategy(path);
  }

  void zero_grad() { rounds_ ? inner_.zero_grad() : session().zero_grad(); }

  void step() {
    if (rounds_) {
      inner_.step();
      rounds_->end_update();
      mend_if_lost();
      return;
    }
    session().step(nullptr);
    if (++dense_steps_ >= of_rounds_.dense_steps && length_.round().updates > 1) begin_rounds();
  }

  bool end_round() {
    if (!rounds_) return false;
    const bool has_ended = rounds_->end_round();
    mend_if_lost();
    return has_ended;
  }

  Progress progress() const {
    Progress progress;
    if (!rounds_) return progress;
    const Rounds::Progress& of = rounds_->progress();
    return {.synchronous = false,
            .rounds = of.rounds,
            .updates = of.updates,
            .updates_a_round = of.updates_a_round,
            .delay = of.delay,
            .exchange_ms = of.exchange_ms,
            .update_ms = of.update_ms,
            .lost = of.lost};
  }

  void save(const std::string& folder) {
    end_round();
    if (rounds_) return rounds_->save_checkpoint(folder);
    save_rounds({&session()}, folder, {.dense_steps = dense_steps_});
  }

  void load(const std::string& folder) {
    if (rounds_) return rounds_->load_checkpoint(folder);
    const SavedRounds saved = load_rounds(session(), folder);
    if (!saved.is_synchronous()) {
      check_fits(saved, folder, of_rounds_.fragments, session().trained());  // a job that refuses it stays as it is
      begin_rounds();
      return rounds_->load_checkpoint(folder);
    }
    session().load_checkpoint(folder);
    dense_steps_ = saved.dense_steps;
  }

 private:
  void open(Arrival arrival, const Options& options, const Fragment& fragment) {
    sessions_.push_back(std::make_unique<Session>(trained_by({&inner_}, module_, arrival, fragment), group_, options));
  }

  void mend_if_lost() {
    if (rounds_->take_lost_here()) make_state_finite(inner_);
  }

  void begin_rounds() {
    sessions_.clear();
    Options options = options_;
    if (!options.lossy_after) options.lossy_after = 0;  // the dense steps are done
    for (int64_t f = 0; f < of_rounds_.fragments; ++f) {
      open(Arrival::handed_over, options, {.number = f, .count = of_rounds_.fragments});
    }
    rounds_.emplace(sessions_, OuterStep::Rates{.lr = of_rounds_.outer_lr, .momentum = of_rounds_.outer_momentum},
                    length_, of_rounds_.uneven);
  }

  torch::optim::Optimizer& inner_;
  torch::nn::Module& module_;
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const RoundOptions of_rounds_;
  const Options options_;
  tuner::RoundLength length_;
  int64_t dense_steps_ = 0;
  const int exceptions_ = std::uncaught_exceptions();
  std::vector<std::unique_ptr<Session>> sessions_;  // one, and in rounds one for each fragment
  std::optional<Rounds> rounds_;
};

RoundsOptimizer rounds(torch::optim::Optimizer& optimizer, torch::nn::Module& module,
                       const c10::intrusive_ptr<c10d::ProcessGroup>& group, const RoundOptions& rounds,
                       const Options& options) {
  if (!group) refuse("rounds needs a process group, see init_process_group");
  check(rounds);
  return RoundsOptimizer(std::make_unique<RoundsOptimizer::State>(optimizer, module, group, rounds, options));
}

RoundsOptimizer::RoundsOptimizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
RoundsOptimizer::RoundsOptimizer(RoundsOptimizer&&) noexcept = default;
RoundsOptimizer& RoundsOptimizer::operator=(RoundsOptimizer&&) noexcept = default;
RoundsOptimizer::~RoundsOptimizer() = default;

void RoundsOptimizer::zero_grad() { state_->zero_grad(); }
void RoundsOptimizer::step() { state_->step(); }
bool RoundsOptimizer::end_round() { return state_->end_round(); }
RoundsOptimizer::Progress RoundsOptimizer::progress() const { return state_->progress(); }
Optimizer::Result RoundsOptimizer::result() const { return state_->result(); }
void RoundsOptimizer::export_strategy(const std::string& path) { state_->export_strategy(path); }
void RoundsOptimizer::save_checkpoint(const std::string& folder) { state_->save(folder); }
void RoundsOptimizer::load_checkpoint(const std::string& folder) { state_->load(folder); }

}  // namespace gradtune
