// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// One wrap on one rank. It connects a model and its stepper, the gradients, the executor, the agreement between
// ranks and (on rank 0) the tuner. A step goes in this order:
// - backward: Each gradient is copied to the arena when it is ready, and its bucket starts. In the first pass the
//   buckets wait for the end of the pass, when the kinds of all gradients are known.
// - end of backward: Waits for the last bucket and the control word, carries out the command in that word, and
//   receives rank 0's buffers.
// - begin_update: Checks that the model is still the one that the ranks compared.
// - the update: The stepper does it in step(), or the user's program does it.
// - end_update: Records the step time.
//
// With forward_overlap, buckets that are due at the next forward pass may stay in flight, and updates of step() may
// be pending, until forward needs them (forward_overlap.h). A call that reads or changes all of them waits first.
#pragma once

#include <unistd.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/core/clock.h"
#include "engine/exec/executor.h"
#include "gradtune/gradtune.h"
#include "hooks/alike.h"
#include "hooks/backward_pass.h"
#include "hooks/c10d/comparison.h"
#include "hooks/c10d/peers.h"
#include "hooks/commands.h"
#include "hooks/contents.h"
#include "hooks/forward_overlap.h"
#include "hooks/front.h"
#include "hooks/gradients.h"
#include "hooks/job.h"
#include "hooks/learning.h"
#include "hooks/module_broadcast.h"
#include "hooks/pass_end.h"
#include "hooks/ready_times.h"
#include "hooks/results.h"
#include "hooks/resume.h"
#include "hooks/step_clock.h"
#include "hooks/updates.h"
#include "hooks/warnings.h"
#include "tuner/driver/driver.h"
#include "tuner/step_protocol.h"

namespace gradtune {

class Session {
 public:
  // An error that keeps this rank from being wrapped, such as an exception of `make`, is sent to all ranks.
  Session(const MakeTrained& make, const c10::intrusive_ptr<c10d::ProcessGroup>& group, const Options& options,
          std::unique_ptr<const core::Clock> clock = std::make_unique<const core::SteadyClock>(),
          std::shared_ptr<Front> front = std::make_shared<Console>());
  ~Session();

  void zero_grad();
  // Evaluates the closure once; then the stepper updates.
  torch::Tensor step(const std::function<torch::Tensor()>& closure);
  // Around an update that the user's program runs: begin_update() before it, and end_update() after it if it did not
  // throw; all ranks call both. With several optimizers, call them for each optimizer, with its number. The first
  // update after a backward pass ends the step and returns true; the other optimizers need not step as often.
  void begin_update();
  bool end_update(size_t optimizer = 0);

  // With Arrival::handed_over, another component brings the gradients of a backward pass, on the thread that runs it:
  // - begin_pass() or enter_autograd_pass(), before the first gradient. After begin_pass(), the program may update
  //   the parameters.
  // - hand_over(), for each gradient, laid out as gradient_strides() says. A parameter that the session does not know
  //   is ignored.
  // - advance(), now and then, if the program goes on between begin_pass() and end_pass(). It does work that the
  //   exchange left to this thread, and does not wait.
  // - end_pass(). Waits for the averages, and calls `averaged`. In it, give_back() copies each average, or returns
  //   another tensor if it is sparse. Returns false, and does nothing, if autograd runs the pass inside of another one
  //   that may still bring gradients; then it ends with that one.
  void begin_pass();
  bool end_pass();
  // Begins a pass unless one is running, and ends it when autograd does. Call it in a hook of each gradient.
  void enter_autograd_pass();
  void hand_over(const torch::Tensor& parameter, torch::Tensor gradient);
  void advance() {
    raised([&] { explained(Final::every_error, [this] { executor_.advance(); }); });
  }
  // Ends with an error on all ranks unless these are the same on all. All ranks call it between passes.
  void must_agree(const std::string& what, const std::vector<SharedThing>& things) {
    explained(Final::every_error, [&] { peers_.must_agree(what, to_text(things)); });
  }
  // Ends with an error on all ranks, which goes on, unless all of them succeeded. All ranks call it between passes.
  void must_succeed(const std::string& what, const core::Status& mine) {
    explained(Final::between_ranks, [&] { peers_.must_succeed(what, mine); });
  }
  // The values of all ranks, by rank. All ranks call it between passes, or in one before its first gradient. The time
  // of waiting for slower ranks is no computation.
  std::vector<uint64_t> gather(uint64_t value) {
    const int64_t began_ns = clock_->now_ns();
    std::vector<uint64_t> values;
    explained(Final::every_error, [&] { values = peers_.gather(value); });
    step_clock_.waited_apart(clock_->now_ns() - began_ns);
    return values;
  }
  // In rounds: what this rank tells with the pass under way. Call it before the first gradient.
  void tell_round(const tuner::RoundState& round) { protocol_.tell_round(round); }
  void give_back(const torch::Tensor& parameter, torch::Tensor& gradient) {
    gradients().give_back(parameter, gradient);
  }
  // At the end of each pass, with what came with it: the report of the step before, and what ranks told. It is the same
  // on all ranks.
  using Averaged = std::function<void(const tuner::StepProtocol::Received& received)>;
  void on_averaged(Averaged averaged) { averaged_ = std::move(averaged); }
  // The parameters whose gradients it averages, in the order of the model.
  std::vector<torch::Tensor> trained() const { return gradients().trained(); }
  // The buffers that are rank 0's after every pass, as they are now.
  const std::vector<NamedTensor>& buffers() const { return job_.model->buffers(); }
  // Says a line to people on rank 0, unless they want quiet.
  void say(const std::string& line) const {
    if (peers_.rank() == 0 && !settings().quiet) front_->say(line);
  }
  // Writes it to rank 0's journal.
  void note(const tuner::RoundChoice& choice) {
    if (driver_) driver_->chose(choice);
  }
  int rank() const { return peers_.rank(); }
  int64_t step() const { return protocol_.step(); }  // under way, or the next one
  // The step under way holds this number of the program's updates. If ranks differ, it is excluded. Call it before
  // end_update(). The step's time has the whole exchange, also the part that updates hid.
  void count_updates(int64_t updates) { step_clock_.count_updates(updates, executor_.op_times()); }
  double compute_ms() const { return step_clock_.compute_ms(); }  // of the last step, on this rank
  std::shared_ptr<int> no_sync() const { return no_sync_; }  // while it is above 0, backward passes only accumulate
  // Waits for averages and does pending updates.
  void synchronize();
  // Sends rank 0's buffers to all ranks; all ranks call it. Each backward pass does so too; this is for later
  // changes.
  void broadcast_buffers();
  void exclude_step() { protocol_.exclude(); }
  void save(torch::serialize::OutputArchive& archive);
  void load(torch::serialize::InputArchive& archive);
  void export_strategy(const std::string& path) const;
  void save_checkpoint(const std::string& folder);
  void load_checkpoint(const std::string& folder);
  // Before other work of such a call that all ranks make, so that a rank that makes none is named.
  void enter_checkpoint(Call call) {
    check_out_of_backward(call == Call::save_checkpoint ? "save_checkpoint" : "load_checkpoint");
    peers_.enter(call, protocol_.step());
  }
  Optimizer::Progress progress() const;
  void tell(Optimizer::Progress& progress) const;
  int64_t epoch() const { return protocol_.epoch(); }
  Optimizer::Result result() const;                           // the same on all ranks
  int64_t results_taken() const { return results_.taken(); }  // grows by one with each new result
  std::string describe_in_force() const;  // the strategy of the next step, also while it is on trial
  // Ends training on this rank for that reason. Other ranks are told at once and end with it.
  void give_up(const std::string& why) { note_failure({core::Error::Code::invalid, why}); }
  // A forked process has this memory, but none of its threads and connections.
  bool is_of_this_process() const { return origin_.process == ::getpid(); }

 private:
  // Set-up.
  void set_up();
  void set_hooks();

  // Backward.
  void on_ready(int32_t position);
  void take_ready(int32_t position);
  void send(int32_t position);
  void enter_pass();
  void begin_backward();
  void begin_step();
  void pass_was_left();
  tuner::StepProtocol::Received finish_backward();
  void send_missing();
  void tune(const tuner::StepProtocol::Received& received);
  void check_only_read();
  void send_buffers(bool are_new);
  void look_at_buffers() {
    if (learning_.known() != Learning::Known::all) return;  // they are sent anyway
    if (module_broadcast_.have_changed(job_.model->buffers())) protocol_.tell_new_buffers();
  }

  // Updates.
  void check_unchanged();
  void end_step();

  // Work that is still in flight.
  void finish_late();
  void settle_step();
  void report_times();

  // An error on this rank ends the wrap and is sent to all ranks. With `between_ranks`, that holds only for errors
  // of communication, because all ranks already know the other errors.
  enum class Final : uint8_t { every_error, between_ranks };
  void explained(Final final, const std::function<void()>& body);
  // The same in autograd's callbacks: it throws the exception type that the program expects.
  void raised(const std::function<void()>& body);
  [[noreturn]] void fail(const core::Error& error);
  void note_failure(const core::Error& error);
  void check_usable();
  void check_between_passes();
  void check_out_of_backward(const char* what);

  const Settings& settings() const { return job_.settings; }
  Gradients& gradients() const { return *job_.gradients; }
  SessionParts parts();

  struct Origin {
    int process, exceptions;  // the process, and exceptions in flight, in the constructor
  };
  const Origin origin_;
  const std::unique_ptr<const core::Clock> clock_;
  const std::shared_ptr<Front> front_;
  Warnings warnings_;
  Job job_;
  Peers peers_;
  ModuleBroadcast module_broadcast_;
  exec::Executor executor_;
  ForwardOverlap overlap_;
  tuner::StepProtocol protocol_;           // its control word belongs to the executor until backward has ended
  std::unique_ptr<tuner::Driver> driver_;  // rank 0
  Contents contents_;
  Results results_;
  BackwardPass pass_;
  Learning learning_;
  Commands commands_;

  // The current step.
  const std::shared_ptr<int> no_sync_ = std::make_shared<int>(0);
  Updates updates_;
  ReadyTimes ready_;
  StepClock step_clock_;
  Alike alike_;  // as it was sent
  struct Ran {
    int64_t step;
    int32_t slot;
  };
  std::optional<Ran> ran_;  // the step whose operation times are not reported yet
  Averaged averaged_;
  std::optional<core::Error> failure_;
  PassEnd pass_end_;
};

}  // namespace gradtune
