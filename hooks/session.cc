// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/session.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "engine/compress/compressor.h"
#include "engine/exec/codec_uses.h"
#include "hooks/c10d/errors.h"
#include "hooks/nested_pass.h"
#include "hooks/refusal.h"
#include "hooks/result_text.h"
#include "hooks/shared_state.h"

namespace gradtune {
namespace {

exec::ExecutorOptions executor_options(const Settings& settings, exec::Device* device, Peers& peers) {
  return {.host_threads = static_cast<int>(settings.host_threads),
          .timeout_ms = settings.timeout_ms,
          .memory_budget_bytes = settings.memory_budget,
          .seed = settings.seed,
          .device = device,
          .alarm = [&peers] { return peers.alarm(); }};
}

// The numbers of the optimizers; bit i stands for optimizer i.
std::string names_of(uint64_t optimizers) {
  std::string names;
  for (int i = 0; i < 64; ++i) {
    if ((optimizers >> i & 1) != 0) names += (names.empty() ? "" : ", ") + std::to_string(i);
  }
  return names.empty() ? "none" : names;
}

// The first rank on which other optimizers stepped than on rank 0; there must be one.
std::string who_stepped(const std::vector<uint64_t>& optimizers) {
  const auto other = std::ranges::find_if(optimizers, [&](uint64_t each) { return each != optimizers[0]; });
  return "of the optimizers, rank " + std::to_string(other - optimizers.begin()) + " stepped " + names_of(*other) +
         " since the backward pass before, rank 0 " + names_of(optimizers[0]);
}

}  // namespace

// --- set-up ----------------------------------------------------------------------------------------------------------

Session::Session(const MakeTrained& make, const c10::intrusive_ptr<c10d::ProcessGroup>& group, const Options& options,
                 std::unique_ptr<const core::Clock> clock, std::shared_ptr<Front> front)
    : process_(::getpid()),
      exceptions_at_start_(std::uncaught_exceptions()),
      clock_(std::move(clock)),
      front_(std::move(front)),
      warnings_(*front_, group->getRank()),
      job_(make, group, options, *clock_, warnings_),
      settings_(job_.settings),
      // Throws if `job_` is not usable.
      peers_(
          group, options, settings_.timeout_ms, *clock_, job_.status,
          job_.gradients ? job_.gradients->alarm_before() : nullptr, [this] { return front_->interrupted(); },
          job_.collectives.get(),
          settings_.quiet ? WaitingLine::Say() : [this](const std::string& line) { front_->say(line); }),
      gradients_(*job_.gradients),
      module_broadcast_(peers_),
      executor_(peers_.groups(), *clock_, executor_options(settings_, job_.device.get(), peers_),
                [this](bool finite) { return protocol_.control_word(finite); }),
      overlap_(settings_.forward_overlap, gradients_, *job_.stepper, executor_, *clock_, warnings_),
      protocol_(executor_, peers_.rank(), job_.limits, &tuner::read_candidate) {
  explained(Final::every_error, [this] { set_up(); });
  gradients_.set_hooks({.ready = [this](int32_t position) { on_ready(position); },
                        .alarm =
                            [this, entered = false]() mutable {
                              if (!std::exchange(entered, true)) peers_.enter(Call::wrap, protocol_.step());
                              return peers_.alarm();
                            },
                        .compiled =
                            [this] {
                              front_->raise(core::Exception(
                                  {core::Error::Code::invalid,
                                   "gradtune: a backward pass under compiled autograd runs no hooks of gradients, so "
                                   "that they would not be averaged; allowed is torch.compile of the model without "
                                   "compiled autograd"}));
                            },
                        .finish =
                            [this] {
                              if (!failure_) synchronize();
                            }});
  step_began_ns_ = clock_->now_ns();
}

Session::~Session() {
  handle_->session = nullptr;
  // If the user's training ends with an exception, or within a pass, other ranks would wait for messages that never
  // come.
  if (!failure_ && pass_.is_running()) pass_was_left();
  if (!failure_) {
    try {
      finish_late();  // the user goes on with the parameters
    } catch (const std::exception& caught) {
      note_failure(error_of(caught));
    }
  }
  if (!failure_ && std::uncaught_exceptions() > exceptions_at_start_) {
    note_failure({core::Error::Code::invalid, "training ended with an exception outside of gradtune"});
  }
  if (!failure_) peers_.leave(protocol_.step());
  if (driver_ && !failure_) driver_->finish();
  executor_.stop();
  peers_.close(failure_.has_value());
}

bool Session::is_of_this_process() const { return process_ == ::getpid(); }

void Session::set_up() {
  std::vector<SharedThing> shared = describe(settings_);
  for (auto&& things : {describe(*job_.model, *job_.stepper), describe_buffers(*job_.model)}) {
    shared.insert(shared.end(), things.begin(), things.end());
  }
  peers_.must_agree("options, parameters or buffers", to_text(shared));
  module_broadcast_.broadcast(job_.model->parameters());
  module_broadcast_.broadcast(job_.model->buffers());
  core::Status can_write;
  if (peers_.rank() == 0) {
    policies::Machine machine = peers_.machine();
    if (job_.device) {
      machine.cores.computing = 0;
      machine.on_device = {
          .gradients = true, .collectives = job_.collectives != nullptr, .kernels = job_.device->kernels() != nullptr};
    }
    driver_ =
        std::make_unique<TunerDriver>(settings_, peers_.groups().seat, peers_.network(), machine, *clock_, *front_);
    can_write = driver_->claim_journal();
  }
  peers_.must_succeed("write the journal", can_write);
  take_imported();
  start_tuning();
}

// Only rank 0 reads a strategy file. Its order of tensors is the order of the arena from the first step on.
void Session::take_imported() {
  if (settings_.strategy.empty()) return;
  const core::TraitsTable known = compress::known_traits();
  // A process with several models has one variable for all of them, so the file for this model is chosen.
  std::optional<core::Error> why_not;
  for (std::string_view rest = settings_.strategy; !rest.empty();) {
    const std::string path(rest.substr(0, rest.find(',')));
    rest.remove_prefix(std::min(rest.size(), path.size() + 1));
    auto file = tuner::parse_strategy(peers_.broadcast_file(path, tuner::kJobLimits.bytes, "option strategy"), known);
    core::Result<core::GradientTable> table = core::GradientTable();
    if (file) table = tuner::fit(file.value(), gradients_.table(), peers_.size(), settings_.fidelity, known);
    if (file && table) {
      for (const core::Bucket& bucket : file.value().strategy.buckets) {
        check_momentum(*job_.stepper, bucket.option.codecs);
      }
      lay(table.value());
      imported_ = std::move(file.value());
      return;
    }
    const core::Error& error = file ? table.error() : file.error();
    if (!why_not) why_not = core::Error{error.code, "strategy file " + path + ": " + error.message};
  }
  const bool is_one = settings_.strategy.find(',') == std::string::npos;
  throw core::Exception({why_not->code, is_one ? why_not->message
                                               : "no file of \"" + settings_.strategy +
                                                     "\" can be used; the first: " + why_not->message});
}

void Session::explained(Final final, const std::function<void()>& body) {
  using Code = core::Error::Code;
  try {
    body();
  } catch (const std::exception& caught) {
    if (failure_) throw core::Exception(*failure_);
    const auto* known = dynamic_cast<const core::Exception*>(&caught);
    const bool between_ranks = known != nullptr && (known->code() == Code::lost || known->code() == Code::timeout ||
                                                    known->code() == Code::peer);
    if (known != nullptr && !between_ranks && final == Final::between_ranks) throw;
    fail(error_of(caught));
  }
}

void Session::raised(const std::function<void()>& body) {
  try {
    body();
  } catch (const core::Exception& error) {
    front_->raise(error);
  }
}

// --- backward --------------------------------------------------------------------------------------------------------

void Session::on_ready(int32_t position) {
  if (core::Status in_time = overlap_.on_gradient(position); !in_time) {
    raised([&] { check_usable(), fail(in_time.error()); });
  }
  if (*no_sync_ > 0) {
    accumulated_ = true;
    return;
  }
  raised([&] { explained(Final::every_error, [this, position] { take_ready(position); }); });
}

void Session::hand_over(const torch::Tensor& parameter, torch::Tensor gradient) {
  const int32_t position = gradients_.hand_over(parameter, std::move(gradient));
  if (position >= 0) on_ready(position);
}

// Profilers see spans in which gradtune works or waits on the training thread.
void Session::take_ready(int32_t position) {
  RECORD_USER_SCOPE("gradtune::gradient_ready");
  check_usable();
  if (!pass_.is_running()) {
    begin_backward();
  } else if (handle_->take(Handle::Lost::postponed)) {
    queue_end_of_pass();
  }
  if (!pass_.ready(position)) {
    fail({core::Error::Code::invalid,
          "the gradient of " + gradients_.table().tensors[static_cast<size_t>(position)].name +
              " was accumulated twice in one backward pass (checkpointing that runs backward inside backward?), or the "
              "pass before ended with an exception; each parameter may be reached once"});
  }
  if (known_ == Known::nothing) return;  // the first pass must end before it is known what is sent
  // The time of gradtune's own work in earlier hooks is left out, because policies plan with the times of backward
  // itself.
  if (driver_ && driver_->learns_ready()) {
    ready_.saw(position, executor_.times().encode_ms + executor_.times().decode_ms);
  }
  send(position);
}

// The control word says whether a gradient is not dense. It cannot leave before this call, because the tensor's
// bucket waits.
void Session::send(int32_t position) {
  const int64_t began_ns = clock_->now_ns();
  Gradients::Brought brought = gradients_.bring(position);
  used_[static_cast<size_t>(position)] = static_cast<uint8_t>(brought.use);
  if (brought.use != Gradients::Use::dense) protocol_.tell_not_dense();
  if (driver_) own_shares_[static_cast<size_t>(position)] = own_share(position, brought);
  own_ns_ += clock_->now_ns() - began_ns;
  // Memory is released at once if possible, so that backward allocates its next gradients in pages that are mapped
  // already.
  if (!executor_.tensor_ready(position, brought.arrived)) gradients_.keep(std::move(brought));
}

void Session::begin_backward() {
  see_untold_update();
  settle_step();
  peers_.enter(Call::backward, protocol_.step());
  pass_.begin();
  ready_.begin(used_.size());
  alike_ = {.buffers = job_.model->buffer_layout(), .updated = std::exchange(updated_, 0)};
  own_ns_ = 0;
  begun_at_ = gradients_.sample(protocol_.step());
  if (known_ != Known::nothing) begin_step();
  queue_end_of_pass();
}

void Session::begin_step() {
  protocol_.begin(alike_.hash());
  if (core::Status begun = executor_.begin_step(); !begun) fail(begun.error());
}

// Autograd calls this at the end of the backward pass that runs the hook, and destroys it in any case.
class Session::PassEnd {
 public:
  explicit PassEnd(std::shared_ptr<Handle> handle) : handle_(std::move(handle)) {}
  PassEnd(const PassEnd&) = delete;
  PassEnd& operator=(const PassEnd&) = delete;
  ~PassEnd() {
    if (state_ == State::ended) return;
    const bool is_inside = torch::autograd::get_current_graph_task_id() >= 0;  // the outer pass is current again
    if (state_ == State::postponed && is_inside) {
      if (handle_->session != nullptr) handle_->session->queue_end_of_pass();
    } else if (std::this_thread::get_id() != handle_->training_thread) {
      handle_->lost = state_ == State::postponed ? Handle::Lost::postponed : Handle::Lost::left;
    } else if (handle_->session != nullptr) {
      handle_->session->pass_was_left();
    }
  }

  void call() {
    state_ = State::ended;
    if (handle_->session != nullptr) handle_->session->end_of_pass(*this);
  }
  void postpone() { state_ = State::postponed; }

 private:
  const std::shared_ptr<Handle> handle_;
  enum class State : uint8_t { waiting, postponed, ended } state_ = State::waiting;
};

void Session::queue_end_of_pass() {
  torch::autograd::Engine::get_default_engine().queue_callback(
      [end = std::make_shared<PassEnd>(handle_)] { end->call(); });
}

// A backward pass may run inside a node of another pass, as with checkpointing. The outer pass may give the
// gradients that the inner one did not reach. So the exchange ends when all gradients are ready, or with the
// outermost pass.
void Session::end_of_pass(PassEnd& end) {
  if (!pass_.is_running()) return;
  if (is_nested_pass() && !pass_.is_whole()) return end.postpone();
  raised([&] {
    explained(Final::every_error, [this] {
      finish_backward();
      if (averaged_) averaged_();
    });
  });
}

// A pass that was aborted has sent some of its gradients, and other ranks wait for the rest.
void Session::pass_was_left() {
  if (failure_) return;
  note_failure({core::Error::Code::invalid,
                "a backward pass ended with an exception; averages of its gradients can not be completed any more"});
}

// The last action of a backward pass, on the thread that ends it; for gradients on a device that is the device's
// thread.
void Session::finish_backward() {
  RECORD_USER_SCOPE("gradtune::finish_backward");
  if (known_ == Known::nothing) begin_first_step();
  ready_.end();
  if (!pass_.is_whole()) bring_missing();
  check_only_read();
  if (core::Status status = executor_.finish_backward(); !status) fail(status.error());
  int64_t finished_ns = clock_->now_ns();
  if (driver_) driver_->saw_ready(ready_.times());
  waited_ms_ = ready_.waited_ms(finished_ns);
  if (waited_ms_) own_ns_ = 0;  // work done while the device computed added no time to the step
  ran_ = {protocol_.step(), protocol_.slot()};
  const auto received = protocol_.receive();
  if (!received && received.error().code == core::Error::Code::mismatch) tell_difference(received.error());
  if (!received) fail(received.error());
  own_ns_ += clock_->now_ns() - finished_ns;
  const bool may_stay = received.value().counts && received.value().command == tuner::Command{};
  if (core::Status ended = overlap_.end_backward(may_stay); !ended) fail(ended.error());
  finished_ns = clock_->now_ns();
  ended_times_ = executor_.times();
  last_times_ = late_times_ + ended_times_;
  if (!overlap_.is_under_way()) tell_times();
  give_averages(received.value().not_dense);
  learn_forward();
  carry_out(received.value().command);
  if (driver_ && known_ == Known::all) {
    if (received.value().counts && driver_->lacks_uses()) {
      driver_->learn_uses(
          exec::codec_uses(gradients_.table(), gradients_.arenas(), settings_.codecs, job_.device.get()));
    }
    if (const auto& why = received.value().failure) driver_->could_not_prepare(protocol_.step(), *why);
    const tuner::Action action = driver_->on_step(received.value().report);
    announce(action);
    driver_->lost(protocol_.step(), protocol_.slot(), protocol_.errors());
    if (action.candidate) driver_->planned(protocol_.step(), action.command.slot, *action.candidate);
  }
  send_buffers();
  if (known_ == Known::content) learn_order();
  pass_.end();
  accumulated_ = false;
  averaged_at_ = begun_at_;
  own_ns_ += clock_->now_ns() - finished_ns;
}

// A parameter that this rank did not use takes part too, with the gradient that was accumulated before, or with
// zeros.
void Session::bring_missing() {
  for (size_t p = 0; p < used_.size(); ++p) {
    if (!pass_.is_ready(p)) send(static_cast<int32_t>(p));
  }
}

// All ranks detect the difference in the same step, and then exchange details. A rank that knows the cause ends,
// which may stop the comparison on others; the mismatch is reported in any case.
void Session::tell_difference(const core::Error& error) {
  std::string who;
  try {
    const auto steps = peers_.gather(static_cast<uint64_t>(protocol_.step()));
    const auto buffers = peers_.gather(alike_.buffers);
    const auto updated = peers_.gather(alike_.updated);
    const auto others = peers_.gather(protocol_.identity());
    for (size_t r = 0; r < steps.size(); ++r) {
      if (steps[r] == steps[0]) continue;
      who += (who.empty() ? "" : ", ") + ("rank " + std::to_string(r) + " is in step " + std::to_string(steps[r]));
    }
    if (!who.empty()) {
      who += ", rank 0 in step " + std::to_string(steps[0]) +
             ": some rank left out or added a backward pass, a no_sync() or a step()";
    } else if (!tuner::differing_ranks(buffers).empty()) {
      peers_.must_agree("buffers", to_text(describe_buffers(*job_.model)));
    } else if (!tuner::differing_ranks(updated).empty()) {
      who = who_stepped(updated);
    } else {
      who = "differs from rank 0: rank " + tuner::differing_ranks(others);
    }
  } catch (const core::Exception& failed) {
    if (failed.code() == core::Error::Code::mismatch) fail({failed.code(), failed.what()});
    who = std::string("who differs is not known, as comparing all ranks failed: ") + failed.what();
  }
  fail({error.code, error.message + " (" + who + ")"});
}

// Sends the action in the next control word. A decision goes with it to all ranks, so that all report the same.
void Session::announce(const tuner::Action& action) {
  if (driver_->take_news()) news_ = to_text(driver_->result());
  const bool prepares = action.command.kind == tuner::Command::Kind::prepare;
  protocol_.announce(action.command, prepares ? file_text(*action.candidate, /*evidence=*/false) : news_);
}

void Session::carry_out(const tuner::Command& command) {
  const int64_t bytes = protocol_.carry_out(command);
  if (bytes == 0) return;
  std::string text = peers_.rank() == 0 ? protocol_.announced_text() : std::string();
  text.resize(static_cast<size_t>(bytes));
  peers_.broadcast(reinterpret_cast<std::byte*>(text.data()), bytes);
  if (command.kind != tuner::Command::Kind::prepare) return take_result(text);
  if (const core::Status prepared = protocol_.receive_strategy(text); !prepared) {
    warnings_.once(Warnings::Kind::not_prepared,
                   "a strategy could not be prepared, and is not tried: " + prepared.error().message);
  }
}

void Session::forget_result() {
  result_.reset();
  ++results_taken_;
  news_.clear();
}

void Session::take_result(const std::string& text) {
  result_ = parse_result(text).value();
  ++results_taken_;
  news_.clear();
}

// --- failures --------------------------------------------------------------------------------------------------------

void Session::check_usable() {
  if (handle_->take(Handle::Lost::left) && pass_.is_running()) pass_was_left();
  if (failure_) throw core::Exception(*failure_);
  if (!gradients_.ended()) return;
  refuse("the optimizer was wrapped again since, and this wrap has ended; use the newer one");
}

void Session::check_between_passes() {
  check_usable();
  if (!pass_.is_running()) return;
  fail({core::Error::Code::invalid,
        "a backward pass ended with an exception, or this was called inside of one; averages of its gradients "
        "can not be completed any more"});
}

void Session::fail(const core::Error& error) {
  note_failure(error);
  throw core::Exception(*failure_);
}

void Session::give_up(const std::string& why) { note_failure({core::Error::Code::invalid, why}); }

void Session::note_failure(const core::Error& error) {
  if (!failure_) failure_ = core::Error{error.code, peers_.explain(error, protocol_.step())};
}

// --- what users ask --------------------------------------------------------------------------------------------------

std::string Session::file_text(const policies::Candidate& candidate, bool evidence) const {
  tuner::StrategyFile file =
      tuner::strategy_file(gradients_.table(), peers_.size(), settings_.fidelity, candidate.label, candidate.strategy);
  if (evidence) file.evidence = driver_->evidence();
  return tuner::to_json(file);
}

void Session::export_strategy(const std::string& path) const {
  if (!driver_) return;
  const bool knows = known_ == Known::all;
  if (!knows && !imported_) {
    refuse("there is no strategy to export before the first step is done");
  }
  tuner::write_file_atomically(path, file_text(knows ? driver_->chosen() : protocol_.in_force(), /*evidence=*/knows))
      .value();
}

Optimizer::Progress Session::progress() const {
  Optimizer::Progress progress;
  tell(progress);
  return progress;
}

// The strings in `progress` keep their memory from call to call.
void Session::tell(Optimizer::Progress& progress) const {
  progress.step = protocol_.step();
  progress.epoch = protocol_.epoch();
  progress.stage = driver_ ? driver_->stage() : std::string_view("follow");
  progress.strategy = protocol_.in_force().label;
  progress.nonfinite_steps = protocol_.nonfinite_steps();
  progress.late_updates = overlap_.late_updates();
  progress.step_ms = last_step_ms_;
  progress.encode_ms = last_times_.encode_ms;
  progress.decode_ms = last_times_.decode_ms;
  progress.wait_ms = last_times_.wait_ms;
}

Optimizer::Result Session::result() const {
  if (result_) return *result_;
  // Before any decision, this is the initial strategy.
  const bool is_pinned = settings_.tuning_budget == 0;
  const tuner::Standing standing{
      .state = is_pinned ? tuner::Standing::State::pinned : tuner::Standing::State::undecided,
      .label = protocol_.in_force().label};
  Optimizer::Result result = result_of(standing, settings_.fidelity);
  result.description = core::describe(protocol_.in_force().strategy, gradients_.table());
  return result;
}

std::string Session::describe_in_force() const { return core::describe(executor_.strategy(), gradients_.table()); }

}  // namespace gradtune
