// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// One wrap on one rank: brings together a model and who steps it, gradients, executor, agreement and (on rank 0) the
// tuner. The order of things in a step:
//   backward        each gradient is brought into the arena when it is ready, and its bucket starts; in the first pass
//                   that waits for the end of it, when it is known what gradients are like
//   end of backward waits for the last bucket and the control word; carries out the command that the word brought;
//                   buffers from rank 0
//   begin_update    what is trained is still what the ranks compared
//   the update      by the stepper in step(), or by the user's program
//   end_update      the clock of the step
// With forward_overlap, buckets that are due at the next forward pass may be under way, and updates by step() may be to
// come, until forward needs them (forward_overlap.h). What looks at all of them, or changes something, waits first.
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

// What is trained, and who steps it.
struct Trained {
  std::unique_ptr<Model> model;
  std::unique_ptr<Stepper> stepper;
  Arrival arrival = Arrival::hooks;
  // What computes on a device; null: what gradtune has for it.
  std::function<std::unique_ptr<exec::Kernels>(c10::Device device)> make_kernels = {};
};

class Session {
 public:
  // `make` is called once, here. What it throws is told to all ranks, as all that keeps this one from being wrapped.
  using MakeTrained = std::function<Trained(const Settings& settings)>;
  Session(const MakeTrained& make, const c10::intrusive_ptr<c10d::ProcessGroup>& group, const Options& options,
          std::unique_ptr<const core::Clock> clock = std::make_unique<const core::SteadyClock>(),
          std::shared_ptr<Front> front = std::make_shared<Console>());
  ~Session();

  void zero_grad();
  // The closure, evaluated once, and an update by the stepper.
  torch::Tensor step(const std::function<torch::Tensor()>& closure);
  // Around an update that the user's program runs, both by all ranks: before it, and after it if it did not throw. Of
  // several optimizers each one's is told, by number: the first after a backward pass ends the step, and returns true;
  // others need not step as often.
  void begin_update();
  bool end_update(size_t optimizer = 0);
  // Where gradients are handed over, on the thread that runs backward: one of the pass under way, laid out as
  // gradient_strides() says; a parameter that the session does not know is left alone. At the end of the pass
  // `averaged` is called, in which give_back() copies each average, or gives another tensor where it is sparse.
  void hand_over(const torch::Tensor& parameter, torch::Tensor gradient);
  void give_back(const torch::Tensor& parameter, torch::Tensor& gradient) { gradients_.give_back(parameter, gradient); }
  void on_averaged(std::function<void()> averaged) { averaged_ = std::move(averaged); }
  std::shared_ptr<int> no_sync() const { return no_sync_; }  // backward passes only accumulate while it is above 0
  // Waits for averages and does updates that are still to come.
  void synchronize();
  // Those of rank 0 to all ranks, by all ranks. They come with each backward pass: for what changed since.
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
  int64_t results_taken() const { return results_taken_; }  // grows by one when another one came
  std::string describe_in_force() const;                    // the strategy of the next step, also while it is on trial
  // Training on this rank ends for that reason: told to the other ranks at once, as what they end with.
  void give_up(const std::string& why);
  // A process that was forked has this memory, but none of its threads and connections.
  bool is_of_this_process() const;

 private:
  // What was wrapped; where it can not be, `status` says why, and the rest is not all there.
  struct Job {
    Job(const MakeTrained& make, const c10::intrusive_ptr<c10d::ProcessGroup>& group, const Options& options,
        const core::Clock& clock, Warnings& warnings);

    Settings settings;
    tuner::ErrorBudget::Limits limits;
    std::unique_ptr<Model> model;
    std::unique_ptr<Stepper> stepper;
    std::shared_ptr<exec::Device> device;      // null where gradients are the host's
    std::unique_ptr<QueueStream> collectives;  // of NCCL; null where it is not used
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

  // What fails on this rank ends the wrap, and is told to all: with `between_ranks`, only what fails between them, as
  // other errors were told to all ranks already.
  enum class Final : uint8_t { every_error, between_ranks };
  void explained(Final final, const std::function<void()>& body);
  // The same where autograd calls: what is thrown is what the program expects.
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
  tuner::StepProtocol protocol_;         // its control word is the executor's until backward is done
  std::unique_ptr<TunerDriver> driver_;  // rank 0

  // The step under way.
  BackwardPass pass_;
  const std::shared_ptr<int> no_sync_ = std::make_shared<int>(0);
  bool accumulated_ = false;             // by a pass under no_sync, since the last step()
  uint64_t begun_at_ = 0;                // the parameters' sample when the pass began
  std::optional<uint64_t> averaged_at_;  // the same, where no step() followed yet
  uint64_t updated_ = 0;                 // by which optimizers (a bit each) since the last pass that averages
  int untold_ = 0;                       // updates in a row that nobody told of
  // Of the gradients: nothing before the first backward pass; then which of them come as rows; then their order, too.
  enum class Known : uint8_t { nothing, content, all } known_ = Known::nothing;
  ReadyTimes ready_{*clock_, job_.device};
  std::optional<double> waited_ms_;    // for a device, after backward
  int64_t own_ns_ = 0;                 // what gradtune took on this thread beside the executor
  std::vector<uint8_t> used_;          // by position: Gradients::Use, of this rank, then of all
  std::vector<Stepper::Takes> takes_;  // by position: of the optimizer
  std::vector<double> own_shares_;     // by position, on rank 0: of rows that are not zero; negative: not looked at
  // Of the pass under way: what else ranks must have alike, as the others were told.
  struct Alike {
    uint64_t buffers = 0;  // their layout
    uint64_t updated = 0;  // by which optimizers, since the pass before

    uint64_t hash() const {
      core::Hasher hasher;
      hasher.add(buffers);
      hasher.add(updated);
      return hasher.value();
    }
  } alike_;
  int64_t step_began_ns_ = 0;
  std::function<void()> averaged_;
  std::string news_;                         // on rank 0, what is decided and the other ranks are not told yet
  std::optional<Optimizer::Result> result_;  // as rank 0 told it last; nothing before
  int64_t results_taken_ = 0;
  double last_step_ms_ = 0;
  exec::StepTimes last_times_;   // of the step, in which late buckets of the one before were waited for
  exec::StepTimes ended_times_;  // of the executor's step when backward ended
  exec::StepTimes late_times_;   // of the executor's step before, after backward had ended
  struct Ran {
    int64_t step;
    int32_t slot;
  };
  std::optional<Ran> ran_;  // of whose operations it is not told yet when they ran
  // What the ends of backward passes hold of the session, which they may outlive. Where gradients are on a device,
  // autograd destroys that of a pass which was left on a thread of its own, while the one that trains goes on.
  struct Handle {
    explicit Handle(Session* of) : session(of) {}

    // An end that autograd destroyed on a thread that does not train.
    enum class Lost : uint8_t {
      none,
      postponed,  // to that of the pass around, which runs on another thread
      left,       // with its pass
    };
    bool take(Lost what) { return lost.compare_exchange_strong(what, Lost::none); }

    Session* session;                                                    // null once it is gone
    const std::thread::id training_thread = std::this_thread::get_id();  // that calls wrap
    std::atomic<Lost> lost = Lost::none;
  };
  const std::shared_ptr<Handle> handle_ = std::make_shared<Handle>(this);
  std::optional<core::Error> failure_;
};

}  // namespace gradtune
