// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/session.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstring>

#include "hooks/optimizer_checks.h"
#include "policies/baseline.h"

namespace gradtune {
namespace {

exec::ExecutorOptions executor_options(const Settings& settings, Peers& peers) {
  return {.host_threads = static_cast<int>(settings.host_threads),
          .timeout_ms = settings.timeout_ms,
          .memory_budget_bytes = settings.memory_budget,
          .seed = settings.seed,
          .alarm = [&peers] { return peers.alarm(); }};
}

// What has to be the same on all ranks, a line for each thing.
std::string agreed_text(const core::GradientTable& table, const Settings& settings) {
  std::string text = "fidelity " + std::string(core::to_string(settings.fidelity)) + ", compressors";
  for (const core::CompressorSpec& codec : settings.codecs) text += " " + core::to_string(codec);
  text += ", seed " + std::to_string(settings.seed);  // of random numbers that ranks share
  // What is in force at first.
  text += settings.strategy.empty() ? ", no strategy file" : ", a strategy file";
  text += settings.tuning_budget == 0 ? ", no tuning" : ", tuning";
  text += ", lossy after step " + std::to_string(settings.lossy_after);
  for (const core::TensorInfo& tensor : table.tensors) {
    text += "\n" + tensor.name + " " + c10::str(tensor.shape) + " " + std::string(core::to_string(tensor.dtype));
  }
  return text;
}

double ms_between(int64_t begin_ns, int64_t end_ns) { return static_cast<double>(end_ns - begin_ns) * 1e-6; }

}  // namespace

// --- set-up ----------------------------------------------------------------------------------------------------------

Session::Session(torch::optim::Optimizer& optimizer, torch::nn::Module& module,
                 c10::intrusive_ptr<c10d::ProcessGroup> group, const Options& options,
                 std::unique_ptr<const core::Clock> clock)
    : optimizer_(check_optimizer(optimizer)),
      module_(module),
      settings_(resolve(options, gradtune_variables()).value()),
      clock_(std::move(clock)),
      gradients_(module, optimizer),
      peers_(group, options, settings_.timeout_ms, *clock_),
      module_broadcast_(peers_),
      executor_(peers_.groups(), *clock_, executor_options(settings_, peers_),
                [this](bool finite) { return control_word(finite); }),
      error_budget_(settings_.error_budget) {
  check_momentum(optimizer_, settings_.codecs);
  explained([this] { set_up(); });
  gradients_.on_ready([this](int32_t position) { on_ready(position); });
  step_began_ns_ = clock_->now_ns();
}

Session::~Session() {
  if (!failure_) peers_.leave(step_);
  if (pilot_ && !failure_) pilot_->finish();
  executor_.stop();
  peers_.close(failure_.has_value());
}

void Session::set_up() {
  peers_.must_agree("options or parameters", agreed_text(gradients_.table(), settings_));
  module_broadcast_.broadcast(module_.parameters());
  module_broadcast_.broadcast(module_.buffers());
  core::Status can_write;
  if (peers_.rank() == 0) {
    pilot_ = std::make_unique<Pilot>(settings_, peers_.groups().seat, peers_.network(), peers_.machine(), *clock_);
    can_write = pilot_->can_write_journal();
  }
  peers_.must_succeed("write the journal", can_write);
  take_imported();
  start_tuning();
}

// A strategy file is read by rank 0 alone. Its order of tensors is the order of the arena from the first step on.
void Session::take_imported() {
  if (settings_.strategy.empty()) return;
  const std::string text = peers_.broadcast_file(settings_.strategy, 1 << 20);
  const std::vector<core::CompressorTraits> known = compress::known_traits();
  const auto refuse = [&](const core::Error& error) {
    throw core::Exception({error.code, "gradtune: strategy file " + settings_.strategy + ": " + error.message});
  };
  auto file = tuner::parse_strategy(text, known);
  if (!file) refuse(file.error());
  auto table = tuner::fit(file.value(), gradients_.table(), peers_.size(), settings_.fidelity, known);
  if (!table) refuse(table.error());
  for (const core::Bucket& bucket : file.value().strategy.buckets) check_momentum(optimizer_, bucket.option.codecs);
  lay(table.value());
  order_learned_ = true;
  imported_ = std::move(file.value());
}

// The arena in the order of that table, which has the same tensors.
void Session::lay(const core::GradientTable& ordered) {
  const auto& tensors = gradients_.table().tensors;
  std::vector<int32_t> order;
  for (const core::TensorInfo& tensor : ordered.tensors) {
    const auto found = std::ranges::find(tensors, tensor.name, &core::TensorInfo::name);
    core::check(found != tensors.end(), "an order is one of the same tensors");
    order.push_back(static_cast<int32_t>(found - tensors.begin()));
  }
  gradients_.lay(order);
}

void Session::set_gradients() {
  executor_.set_gradients(gradients_.table(), gradients_.arenas());
  ready_.assign(gradients_.table().tensors.size(), false);
  used_.assign(gradients_.table().tensors.size(), 1);
}

// (Again) after the arena was laid: baselines prepared, agreement from epoch 1, and on rank 0 a tuner for this table.
void Session::start_tuning() {
  const core::GradientTable& table = gradients_.table();
  set_gradients();
  std::vector<policies::Candidate> baselines = policies::baselines(table, settings_.fidelity);
  std::optional<policies::Candidate> imported;
  if (imported_) imported = policies::Candidate{imported_->strategy, imported_->label};
  std::map<int32_t, const policies::Candidate*> ready_slots;
  for (size_t b = 0; b < baselines.size(); ++b) ready_slots[static_cast<int32_t>(b)] = &baselines[b];
  if (imported) ready_slots[tuner::kImportedSlot] = &*imported;

  const int32_t first = tuner::first_slot(tuner_options(settings_), compress::known_traits(), imported);
  agreement_.emplace(first, core::hash(ready_slots.at(first)->strategy));
  slots_.clear();
  for (const auto& [slot, candidate] : ready_slots) {
    executor_.prepare(slot, candidate->strategy).value();
    slots_[slot] = *candidate;
    if (slot != first) agreement_->prepared(slot, core::hash(candidate->strategy));
  }
  error_budget_ = tuner::ErrorBudget(settings_.error_budget);
  put_in_force(first, /*is_committed=*/settings_.tuning_budget == 0);  // then there are no trials
  announced_ = {};
  local_ = {};
  if (pilot_ && order_learned_) pilot_->start(table, std::move(imported));
}

// After the first step: the arena is laid in the order in which rank 0's gradients were ready.
void Session::learn_order() {
  std::vector<int32_t> order = ready_order_;
  for (size_t p = 0; p < ready_.size(); ++p) {
    if (!ready_[p]) order.push_back(static_cast<int32_t>(p));  // not used in the first step: last
  }
  order = core::small_last(gradients_.table(), order);
  peers_.broadcast(reinterpret_cast<std::byte*>(order.data()), static_cast<int64_t>(order.size() * sizeof order[0]));
  gradients_.lay(order);
  order_learned_ = true;
  excluded_ = true;
  start_tuning();
}

// What fails between ranks is told with the step and the suspected peer.
void Session::explained(const std::function<void()>& body) {
  try {
    body();
  } catch (const core::Exception& error) {
    if (failure_ || (error.code() != core::Error::Code::lost && error.code() != core::Error::Code::timeout)) throw;
    fail({error.code(), error.what()});
  }
}

// --- backward --------------------------------------------------------------------------------------------------------

void Session::on_ready(int32_t position) {
  if (no_sync_ > 0) return;
  check_usable();
  if (!in_backward_) begin_backward();
  const auto p = static_cast<size_t>(position);
  if (ready_[p]) {
    fail({core::Error::Code::invalid,
          "the gradient of " + gradients_.table().tensors[p].name +
              " was accumulated twice in one backward pass (checkpointing that runs backward inside backward?), or the "
              "pass before ended with an exception; each parameter may be reached once"});
  }
  const int64_t now_ns = clock_->now_ns();
  if (ready_order_.empty()) first_ready_ns_ = now_ns;
  ready_[p] = true;
  ready_order_.push_back(position);
  // Without gradtune's own work in the hooks before: backward itself is what policies plan with.
  const double own_ms = executor_.times().encode_ms + executor_.times().decode_ms;
  if (pilot_) pilot_->saw_ready(position, (ms_between(first_ready_ns_, now_ns) - own_ms) * 1e3);
  const torch::Tensor elsewhere = gradients_.adopt_later(position);
  executor_.tensor_ready(position, elsewhere.defined() ? static_cast<const std::byte*>(elsewhere.data_ptr()) : nullptr);
}

void Session::begin_backward() {
  in_backward_ = true;
  std::fill(ready_.begin(), ready_.end(), false);
  ready_order_.clear();
  word_.back() = 0;
  executor_.begin_step();
  torch::autograd::Engine::get_default_engine().queue_callback([this] { explained([this] { finish_backward(); }); });
}

// The last thing of a backward pass, on the thread that called it.
void Session::finish_backward() {
  in_backward_ = false;
  if (ready_order_.size() < ready_.size()) {
    // What this rank did not use takes part all the same, with what was accumulated before or with zeros.
    for (size_t p = 0; p < ready_.size(); ++p) {
      used_[p] = ready_[p] || gradients_.adopt(static_cast<int32_t>(p)) ? 1 : 0;
      if (used_[p] == 0) word_.back() = 1;
    }
    for (size_t p = 0; p < ready_.size(); ++p) {
      if (!ready_[p]) executor_.tensor_ready(static_cast<int32_t>(p));
    }
  }
  if (core::Status status = executor_.finish_step(); !status) fail(status.error());
  last_times_ = executor_.times();
  if (pilot_ && order_learned_) pilot_->ran(step_, agreement_->slot(), executor_.program(), executor_.op_times());
  tuner::ControlWord reduced;
  std::copy_n(word_.begin(), reduced.size(), reduced.begin());
  auto verdict = agreement_->receive(local_, reduced);
  if (!verdict) {
    // A rank that knows ends, and may so end the comparison for others; that they differ is known all the same.
    std::string who;
    try {
      who = "rank " + tuner::differing_ranks(peers_.gather(agreement_->identity()));
    } catch (const core::Exception& error) {
      who = std::string("not known, as comparing all ranks failed: ") + error.what();
    }
    fail({verdict.error().code, verdict.error().message + " (differs from rank 0: " + who + ")"});
  }
  local_.excluded = true;  // its times are told: a second pass before step() has no others
  local_.excess = {};
  const core::Result<bool> settled = executor_.settle(verdict.value().finite);
  if (!settled) fail(settled.error());
  if (!settled.value()) {
    ++nonfinite_steps_;
    excluded_ = true;  // the user may leave this step out, and its time would be added to the next one's
  }
  excess_ = {};
  if (settled.value()) judge_losses();
  if (word_.back() != 0) forget_unused();
  carry_out(verdict.value().command);
  if (pilot_ && order_learned_) {
    const tuner::Action action = pilot_->on_step(verdict.value().report);
    announce(action);
    if (action.candidate) pilot_->planned(step_, action.command.slot, *action.candidate);
  }
  synchronised_ = true;
}

// Gradients that no rank used stay undefined, as with DDP, so that momentum and weight decay leave their parameters
// alone. Not in buckets that keep residuals, or drained some on any rank: there the average holds what earlier steps
// still owed.
void Session::forget_unused() {
  if (ready_order_.size() == ready_.size()) std::fill(used_.begin(), used_.end(), 1);
  for (size_t p = 0; p < used_.size(); ++p) {
    if (executor_.drained(static_cast<int32_t>(p))) used_[p] = 1;
  }
  peers_.max(used_);
  for (size_t p = 0; p < used_.size(); ++p) {
    if (used_[p] == 0 && !executor_.keeps_residual(static_cast<int32_t>(p))) gradients_.forget(static_cast<int32_t>(p));
  }
}

// On the communication thread, while finish_backward waits.
std::span<double> Session::control_word(bool finite) {
  local_.finite = finite;
  const tuner::ControlWord word = agreement_->contribute(local_, announced_);
  std::copy(word.begin(), word.end(), word_.begin());
  return word_;
}

void Session::judge_losses() {
  for (size_t b = 0; b < losses_.size(); ++b) losses_[b] = executor_.loss(static_cast<int32_t>(b));
  excess_ = error_budget_.record(losses_);
}

void Session::put_in_force(int32_t slot, bool is_committed) {
  is_committed ? executor_.commit(slot) : executor_.run(slot);
  committed_ = is_committed;
  losses_.assign(executor_.program().buckets.size(), {});
  is_committed ? error_budget_.commit(executor_.strategy()) : error_budget_.run(losses_.size());
}

// In the next control word.
void Session::announce(const tuner::Action& action) {
  announced_ = action.command;
  if (announced_.kind != tuner::Command::Kind::prepare) return;
  announced_text_ = file_text(*action.candidate, /*evidence=*/false);
  announced_.bytes = static_cast<int64_t>(announced_text_.size());
}

void Session::carry_out(const tuner::Command& command) {
  switch (command.kind) {
    case tuner::Command::Kind::keep: return;
    case tuner::Command::Kind::prepare: prepare_received(command.slot, command.bytes); return;
    case tuner::Command::Kind::run: put_in_force(command.slot, /*is_committed=*/false); return;
    case tuner::Command::Kind::commit: put_in_force(command.slot, /*is_committed=*/true); return;
    case tuner::Command::Kind::drop:
      executor_.drop(command.slot);
      slots_.erase(command.slot);
      return;
  }
}

void Session::prepare_received(int32_t slot, int64_t bytes) {
  excluded_ = true;  // the time of this step holds the preparation
  std::string text = peers_.rank() == 0 ? announced_text_ : std::string();
  text.resize(static_cast<size_t>(bytes));
  peers_.broadcast(reinterpret_cast<std::byte*>(text.data()), bytes);
  std::optional<uint64_t> hash;
  auto file = tuner::parse_strategy(text, compress::known_traits());
  if (file && executor_.prepare(slot, file.value().strategy)) {
    hash = core::hash(file.value().strategy);
    slots_[slot] = {file.value().strategy, file.value().label};
  }
  agreement_->prepared(slot, hash);
}

// --- between backward passes -----------------------------------------------------------------------------------------

void Session::zero_grad() {
  check_between_passes();
  gradients_.drop_all();
}

torch::Tensor Session::step(const std::function<torch::Tensor()>& closure) {
  check_between_passes();
  torch::Tensor loss;
  if (closure) {
    const torch::AutoGradMode enable(true);
    loss = closure();
    check_between_passes();
  }
  gradients_.check_unchanged();
  optimizer_.step();
  if (!synchronised_) excluded_ = true;  // an update without a backward pass that communicated
  const int64_t updated_ns = clock_->now_ns();
  if (synchronised_) {
    explained([this] {
      module_broadcast_.broadcast(module_.buffers());  // running statistics: rank 0's hold everywhere, as with DDP
      if (!order_learned_) learn_order();
    });
  }
  const int64_t now_ns = clock_->now_ns();
  const double others_ms =
      last_times_.encode_ms + last_times_.decode_ms + last_times_.wait_ms + ms_between(updated_ns, now_ns);
  last_step_ms_ = ms_between(step_began_ns_, now_ns);
  step_began_ns_ = now_ns;
  local_ = {.step = step_,
            .step_ms = last_step_ms_,
            .compute_ms = last_step_ms_ - others_ms,
            .comm_ms = last_times_.comm_ms,
            .rank = peers_.rank(),
            .excess = excess_,
            .finite = true,
            .excluded = excluded_};
  excluded_ = false;
  synchronised_ = false;
  excess_ = {};
  ++step_;
  return loss;
}

void Session::load(torch::serialize::InputArchive& archive) {
  optimizer_.load(archive);
  excluded_ = true;
}

void Session::check_usable() const {
  if (failure_) throw core::Exception(*failure_);
}

// A pass that does not come to its end has sent some of its gradients, and other ranks wait for the rest.
void Session::check_between_passes() {
  check_usable();
  if (!in_backward_) return;
  fail({core::Error::Code::invalid,
        "a backward pass ended with an exception, or this was called inside of one; averages of its gradients "
        "can not be completed any more"});
}

void Session::fail(const core::Error& error) {
  failure_ = core::Error{error.code, peers_.explain(error, step_)};
  throw core::Exception(*failure_);
}

// --- what users ask --------------------------------------------------------------------------------------------------

std::string Session::file_text(const policies::Candidate& candidate, bool evidence) const {
  tuner::StrategyFile file =
      tuner::strategy_file(gradients_.table(), peers_.size(), settings_.fidelity, candidate.label, candidate.strategy);
  if (evidence) file.evidence = pilot_->evidence();
  return tuner::to_json(file);
}

void Session::export_strategy(const std::string& path) const {
  if (!pilot_) return;
  if (!order_learned_) {
    throw core::Exception(
        {core::Error::Code::invalid, "gradtune: there is no strategy to export before the first step is done"});
  }
  tuner::write_file_atomically(path, file_text(pilot_->chosen(), /*evidence=*/true)).value();
}

Optimizer::Progress Session::progress() const {
  return {.step = step_,
          .epoch = agreement_->epoch(),
          .stage = pilot_ ? pilot_->stage() : "follow",
          .strategy = slots_.at(agreement_->slot()).label,
          .nonfinite_steps = nonfinite_steps_,
          .step_ms = last_step_ms_,
          .encode_ms = last_times_.encode_ms,
          .decode_ms = last_times_.decode_ms,
          .wait_ms = last_times_.wait_ms};
}

Optimizer::Result Session::result() const {
  Optimizer::Result result;
  if (pilot_) result = pilot_->result();
  result.fidelity = core::to_string(settings_.fidelity);
  result.strategy = slots_.at(agreement_->slot()).label;
  result.description = core::describe(executor_.strategy(), gradients_.table());
  return result;
}

}  // namespace gradtune
