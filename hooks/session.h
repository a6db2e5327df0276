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

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/clock.h"
#include "engine/core/hash.h"
#include "engine/exec/executor.h"
#include "gradtune/gradtune.h"
#include "hooks/backward_pass.h"
#include "hooks/c10d/peers.h"
#include "hooks/checkpoint.h"
#include "hooks/forward_overlap.h"
#include "hooks/front.h"
#include "hooks/gradients.h"
#include "hooks/model.h"
#include "hooks/module_broadcast.h"
#include "hooks/options.h"
#include "hooks/stepper.h"
#include "hooks/tuner_driver.h"
#include "hooks/warnings.h"
#include "tuner/files/strategy_file.h"
#include "tuner/step_protocol.h"

namespace gradtune {

// The model and its stepper.
struct Trained {
  std::unique_ptr<Model> model;
  std::unique_ptr<Stepper> stepper;
  Arrival arrival = Arrival::hooks;
  // Makes the kernels for a device; null: gradtune's own.
  std::function<std::unique_ptr<exec::Kernels>(c10::Device device)> make_kernels = {};
};

class Session {
 public:
  // `make` is called once, in the constructor. Its exception is sent to all ranks, like every error that keeps this
  // rank from being wrapped.
  using MakeTrained = std::function<Trained(const Settings& settings)>;
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
  // With Arrival::handed_over, on the thread that runs backward: takes a gradient of the current pass, laid out as
  // gradient_strides() says. A parameter that the session does not know is ignored. At the end of the pass
  // `averaged` is called. In it, give_back() copies each average, or returns another tensor if it is sparse.
  void hand_over(const torch::Tensor& parameter, torch::Tensor gradient);
  void give_back(const torch::Tensor& parameter, torch::Tensor& gradient) { gradients_.give_back(parameter, gradient); }
  void on_averaged(std::function<void()> averaged) { averaged_ = std::move(averaged); }
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
  Optimizer::Progress progress() const;
  void tell(Optimizer::Progress& progress) const;
  int64_t epoch() const { return protocol_.epoch(); }
  Optimizer::Result result() const;                         // the same on all ranks
  int64_t results_taken() const { return results_taken_; }  // grows by one with each new result
  std::string describe_in_force() const;                    // the strategy of the next step, also while it is on trial
  // Ends training on this rank for that reason. Other ranks are told at once and end with it.
  void give_up(const std::string& why);
  // A forked process has this memory, but none of its threads and connections.
  bool is_of_this_process() const;

 private:
  // The wrapped objects. If wrapping failed, `status` says why, and other members may be missing.
  struct Job {
    Job(const MakeTrained& make, const c10::intrusive_ptr<c10d::ProcessGroup>& group, const Options& options,
        const core::Clock& clock, Warnings& warnings);

    Settings settings;
    tuner::ErrorBudget::Limits limits;
    std::unique_ptr<Model> model;
    std::unique_ptr<Stepper> stepper;
    std::shared_ptr<exec::Device> device;      // null if gradients are on the host
    std::unique_ptr<QueueStream> collectives;  // the stream for NCCL; null if it is not used
    std::unique_ptr<Gradients> gradients;
    core::Status status;
  };

  // Set-up.
  void set_up();
  void take_imported();
  void start_tuning();
  void learn_content();
  void learn_order();
  double own_share(int32_t position, const Gradients::Brought& brought) const;
  void tell_content(int32_t position);
  void tell_sample(int32_t position);
  std::vector<int32_t> take_content(const core::GradientTable& from);
  void lay(const core::GradientTable& ordered);
  void set_gradients();

  // Checkpoints (session_checkpoint.cc).
  void check_out_of_backward(const char* what);
  tuner::SavedRank saved_rank() const;
  std::string resume(const SavedFile& file);
  core::Status fits(const SavedFile& file) const;
  void go_on(const SavedFile& file, const tuner::Action& announced);
  void start_again(const SavedFile& file, const std::string& committed);
  void take_over(const SavedFile& file);
  void copy(const core::GradientTable& table, const AllResiduals& from, const std::vector<std::span<float>>& to) const;

  // Backward.
  void on_ready(int32_t position);
  void take_ready(int32_t position);
  void send(int32_t position);
  void begin_backward();
  void begin_step();
  void begin_first_step();
  class PassEnd;
  void queue_end_of_pass();
  void end_of_pass(PassEnd& end);
  void pass_was_left();
  void finish_backward();
  void bring_missing();
  [[noreturn]] void tell_difference(const core::Error& error);
  void give_averages(bool not_dense);
  uint8_t owed(int32_t position) const;
  void announce(const tuner::Action& action);
  void carry_out(const tuner::Command& command);
  void forget_result();
  void take_result(const std::string& text);

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
  void check_unchanged();
  void check_only_read();
  void send_buffers();
  void see_untold_update();
  void end_step();
  void finish_late();
  void settle_step();
  void learn_forward();
  void tell_times();
  std::string file_text(const policies::Candidate& candidate, bool evidence) const;

  const int process_;
  const int exceptions_at_start_;
  const std::unique_ptr<const core::Clock> clock_;
  const std::shared_ptr<Front> front_;
  Warnings warnings_;
  Job job_;
  const Settings& settings_;
  Peers peers_;
  Gradients& gradients_;
  ModuleBroadcast module_broadcast_;
  exec::Executor executor_;
  ForwardOverlap overlap_;
  std::optional<tuner::StrategyFile> imported_;
  tuner::StepProtocol protocol_;         // its control word belongs to the executor until backward has ended
  std::unique_ptr<TunerDriver> driver_;  // rank 0

  // The current step.
  BackwardPass pass_;
  const std::shared_ptr<int> no_sync_ = std::make_shared<int>(0);
  bool accumulated_ = false;             // by a pass under no_sync, since the last step()
  uint64_t begun_at_ = 0;                // the parameters' sample when the pass began
  std::optional<uint64_t> averaged_at_;  // the same sample, until a step() follows
  uint64_t updated_ = 0;                 // the optimizers that stepped (one bit each) since the last pass that averages
  int untold_ = 0;                       // consecutive updates that were not reported to the session
  // Knowledge of the gradients: nothing before the first backward pass; then which of them come as rows; then also
  // their order.
  enum class Known : uint8_t { nothing, content, all } known_ = Known::nothing;
  ReadyTimes ready_{*clock_, job_.device};
  std::optional<double> waited_ms_;    // for a device, after backward
  int64_t own_ns_ = 0;                 // gradtune's own time on this thread outside the executor
  std::vector<uint8_t> used_;          // by position: Gradients::Use, of this rank, then of all
  std::vector<Stepper::Takes> takes_;  // by position: the kinds of gradient that the optimizer accepts
  std::vector<double> own_shares_;     // by position, on rank 0: share of rows that are not zero; negative: not sampled
  // Other values of the current pass that must be equal on all ranks, as they were sent.
  struct Alike {
    uint64_t buffers = 0;  // hash of their layout
    uint64_t updated = 0;  // the optimizers that stepped since the previous pass

    uint64_t hash() const {
      core::Hasher hasher;
      hasher.add(buffers);
      hasher.add(updated);
      return hasher.value();
    }
  } alike_;
  int64_t step_began_ns_ = 0;
  std::function<void()> averaged_;
  std::string news_;                         // on rank 0: a result that the other ranks do not have yet
  std::optional<Optimizer::Result> result_;  // as rank 0 sent it last; none before
  int64_t results_taken_ = 0;
  double last_step_ms_ = 0;
  exec::StepTimes last_times_;   // of the step in which the previous step's late buckets were waited for
  exec::StepTimes ended_times_;  // of the executor's step at the end of backward
  exec::StepTimes late_times_;   // of the executor's previous step, after the end of backward
  struct Ran {
    int64_t step;
    int32_t slot;
  };
  std::optional<Ran> ran_;  // the step whose operation times are not reported yet
  // The part of the session that the ends of backward passes hold, which they may outlive. If gradients are on a
  // device, autograd destroys the end of an aborted pass on its own thread while the training thread goes on.
  struct Handle {
    explicit Handle(Session* of) : session(of) {}

    // The state of an end that autograd destroyed on a thread that does not train.
    enum class Lost : uint8_t {
      none,
      postponed,  // to the end of the outer pass, which runs on another thread
      left,       // its pass was aborted
    };
    bool take(Lost what) { return lost.compare_exchange_strong(what, Lost::none); }

    Session* session;                                                    // null after the session was destroyed
    const std::thread::id training_thread = std::this_thread::get_id();  // the thread that calls wrap
    std::atomic<Lost> lost = Lost::none;
  };
  const std::shared_ptr<Handle> handle_ = std::make_shared<Handle>(this);
  std::optional<core::Error> failure_;
};

}  // namespace gradtune
