// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/session.h"

#include <ATen/record_function.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <exception>
#include <utility>

#include "engine/compress/compressor.h"
#include "engine/exec/codec_uses.h"
#include "hooks/bucket_spans.h"
#include "hooks/c10d/errors.h"
#include "hooks/nested_pass.h"
#include "hooks/refusal.h"
#include "hooks/shared_state.h"

namespace gradtune {
namespace {

using Known = Learning::Known;

exec::ExecutorOptions executor_options(const Job& job, Peers& peers) {
  const Settings& settings = job.settings;
  return {.host_threads = static_cast<int>(settings.host_threads),
          .timeout_ms = settings.timeout_ms,
          .memory_budget_bytes = settings.memory_budget,
          .seed = settings.seed,
          .sums = job.sums,
          .device = job.device.get(),
          .alarm = [&peers] { return peers.alarm(); }};
}

}  // namespace

// --- set-up ----------------------------------------------------------------------------------------------------------

Session::Session(const MakeTrained& make, const c10::intrusive_ptr<c10d::ProcessGroup>& group, const Options& options,
                 std::unique_ptr<const core::Clock> clock, std::shared_ptr<Front> front)
    : origin_{::getpid(), std::uncaught_exceptions()},
      clock_(std::move(clock)),
      front_(std::move(front)),
      warnings_(*front_, group->getRank()),
      job_(make, group, options, *clock_, warnings_),
      // Throws if `job_` is not usable.
      peers_(
          group, options, settings().timeout_ms, *clock_, job_.status,
          job_.gradients ? job_.gradients->alarm_before() : nullptr, [this] { return front_->interrupted(); },
          Carrier{.choice = job_.transport, .stream = job_.collectives.get()},
          settings().quiet ? WaitingLine::Say() : [this](const std::string& line) { front_->say(line); }),
      module_broadcast_(peers_),
      executor_(peers_.groups(), *clock_, executor_options(job_, peers_),
                [this](bool finite) { return protocol_.control_word(finite); }),
      overlap_(settings().forward_overlap, gradients(), *job_.stepper, executor_, *clock_, warnings_),
      protocol_(executor_, peers_.rank(), job_.limits, &tuner::read_candidate),
      contents_(gradients(), executor_, peers_, driver_),
      learning_(parts()),
      commands_(parts(), warnings_),
      updates_(gradients()),
      ready_(*clock_, job_.device),
      step_clock_(*clock_),
      pass_end_({.ended = [this] { return end_pass(); }, .left = [this] { pass_was_left(); }}) {
  explained(Final::every_error, [this] { set_up(); });
  set_hooks();
  step_clock_.restart();
}

SessionParts Session::parts() {
  return {.settings = settings(),
          .stepper = *job_.stepper,
          .gradients = gradients(),
          .contents = contents_,
          .executor = executor_,
          .overlap = overlap_,
          .pass = pass_,
          .peers = peers_,
          .protocol = protocol_,
          .driver = driver_,
          .results = results_};
}

Session::~Session() {
  pass_end_.stop();
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
  if (!failure_ && std::uncaught_exceptions() > origin_.exceptions) {
    note_failure({core::Error::Code::invalid, "training ended with an exception outside of gradtune"});
  }
  if (!failure_) peers_.leave(protocol_.step());
  if (driver_ && !failure_) driver_->finish();
  executor_.stop();
  peers_.close(failure_.has_value());
}

void Session::set_up() {
  std::vector<SharedThing> shared = describe(settings());
  for (auto&& things : {describe(*job_.model, *job_.stepper), describe_buffers(*job_.model)}) {
    shared.insert(shared.end(), things.begin(), things.end());
  }
  peers_.must_agree("options, parameters or buffers", to_text(shared));
  module_broadcast_.broadcast(job_.model->parameters());
  module_broadcast_.broadcast_buffers(job_.model->buffers());
  core::Status can_write;
  if (peers_.rank() == 0) {
    policies::Machine machine = peers_.machine();
    if (job_.device) {
      machine.cores.computing = 0;
      machine.on_device = {
          .gradients = true, .collectives = job_.collectives != nullptr, .kernels = job_.device->kernels() != nullptr};
    }
    tuner::Job job = tuner_job(settings());
    job.ranks = peers_.groups().seat.ranks();
    job.machine = machine;
    tuner::DriverOptions of_driver{.job = job, .network = peers_.network(), .transport = to_text(job_.transport)};
    of_driver.journal = settings().journal;
    of_driver.quiet = settings().quiet;
    driver_ = std::make_unique<tuner::Driver>(std::move(of_driver), *clock_, *front_);
    can_write = driver_->claim_journal();
  }
  peers_.must_succeed("write the journal", can_write);
  learning_.import();
  learning_.start();
}

void Session::set_hooks() {
  gradients().set_hooks({.ready = [this](int32_t position) { on_ready(position); },
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
    updates_.accumulate();
    return;
  }
  raised([&] { explained(Final::every_error, [this, position] { take_ready(position); }); });
}

void Session::begin_pass() {
  const auto begin = [this] { check_between_passes(), begin_backward(), updates_.allow_in_pass(); };
  raised([&] { explained(Final::every_error, begin); });
}

void Session::enter_autograd_pass() {
  if (*no_sync_ > 0) return;
  raised([&] { explained(Final::every_error, [this] { enter_pass(); }); });
}

void Session::enter_pass() {
  check_usable();
  if (pass_.is_running()) return pass_end_.queue_postponed();
  begin_backward();
  pass_end_.queue();
}

void Session::hand_over(const torch::Tensor& parameter, torch::Tensor gradient) {
  const int32_t position = gradients().hand_over(parameter, std::move(gradient));
  if (position >= 0) on_ready(position);
  step_clock_.goes_on(executor_.times());
}

// Profilers see spans in which gradtune works or waits on the training thread.
void Session::take_ready(int32_t position) {
  RECORD_USER_SCOPE("gradtune::gradient_ready");
  check_usable();
  if (job_.arrival == Arrival::hooks) enter_pass();
  core::check(pass_.is_running(), "a gradient is handed over in a pass");
  if (!pass_.ready(position)) {
    fail({core::Error::Code::invalid,
          "the gradient of " + gradients().table().tensors[static_cast<size_t>(position)].name +
              " was accumulated twice in one backward pass (checkpointing that runs backward inside backward?), or the "
              "pass before ended with an exception; each parameter may be reached once"});
  }
  if (learning_.known() == Known::nothing) return;  // the first pass must end before it is known what is sent
  // The time of gradtune's own work in earlier hooks is left out, because policies plan with the times of backward
  // itself.
  if (driver_ && driver_->learns_ready()) {
    ready_.saw(position, executor_.times().work_ms());
  }
  send(position);
}

// The control word says whether a gradient is not dense, and whether buffers changed. It cannot leave before the last
// call, because that tensor's bucket waits.
void Session::send(int32_t position) {
  Gradients::Brought brought;
  {
    const StepClock::Own own = step_clock_.own();
    brought = contents_.bring(position, protocol_.step());
    if (brought.use != Gradients::Use::dense) protocol_.tell_not_dense();
    if (pass_.is_whole()) look_at_buffers();
  }
  // Memory is released at once if possible, so that backward's next gradients get pages that are mapped already.
  if (!executor_.tensor_ready(position, brought.arrived)) gradients().keep(std::move(brought));
}

void Session::begin_backward() {
  if (updates_.unreported_ends_step(protocol_.step())) end_step();
  settle_step();
  peers_.enter(Call::backward, protocol_.step());
  pass_.begin();
  ready_.begin(gradients().table().tensors.size());
  step_clock_.begin_pass();
  alike_ = {.buffers = job_.model->buffer_layout(), .updated = updates_.begin_pass(protocol_.step())};
  if (learning_.known() != Known::nothing) begin_step();
}

void Session::begin_step() {
  protocol_.begin(alike_.hash());
  if (core::Status begun = executor_.begin_step(); !begun) fail(begun.error());
}

// A backward pass may run inside a node of another pass, as with checkpointing. The outer pass may give the
// gradients that the inner one did not reach. So the exchange ends when all gradients are ready, or with the
// outermost pass.
bool Session::end_pass() {
  if (!pass_.is_running()) return true;
  if (is_nested_pass() && !pass_.is_whole()) return false;
  raised([&] {
    explained(Final::every_error, [this] {
      const tuner::StepProtocol::Received received = finish_backward();
      if (averaged_) averaged_(received);
    });
  });
  return true;
}

// A pass that was aborted has sent some of its gradients, and other ranks wait for the rest.
void Session::pass_was_left() {
  if (failure_) return;
  note_failure({core::Error::Code::invalid,
                "a backward pass ended with an exception; averages of its gradients can not be completed any more"});
}

// The last action of a backward pass, on the thread that ends it (the device's, for gradients on a device).
tuner::StepProtocol::Received Session::finish_backward() {
  RECORD_USER_SCOPE("gradtune::finish_backward");
  step_clock_.awaits(executor_.times());
  if (learning_.known() == Known::nothing) {  // the first pass held back its gradients
    learning_.learn_content();
    begin_step();
    for (const int32_t position : pass_.order()) send(position);
  }
  ready_.end();
  if (!pass_.is_whole()) send_missing();
  if (core::Status status = executor_.finish_backward(); !status) fail(status.error());
  check_only_read();  // behind the exchange, because it waits for a device
  std::optional<StepClock::Own> own(std::in_place, step_clock_);
  const int64_t finished_ns = clock_->now_ns();
  if (driver_) driver_->saw_ready(ready_.times());
  step_clock_.waited(ready_.waited_ms(finished_ns));
  ran_ = {protocol_.step(), protocol_.slot()};
  const auto received = protocol_.receive();
  if (!received) {
    fail(received.error().code == core::Error::Code::mismatch
             ? explain_mismatch(received.error(), alike_, protocol_, *job_.model, peers_)
             : received.error());
  }
  own.reset();
  const bool may_stay = received.value().counts && received.value().command == tuner::Command{};
  if (core::Status ended = overlap_.end_backward(may_stay); !ended) fail(ended.error());
  own.emplace(step_clock_);
  step_clock_.end_backward(executor_.times());
  if (!overlap_.is_under_way()) report_times();
  // A gradient that only some replicas reduce would be applied by these alone.
  if (job_.sums && received.value().not_dense) {
    peers_.must_agree("gradients of a backward pass", to_text(contents_.describe()));
  }
  contents_.give(received.value().not_dense, protocol_.step());
  const std::optional<tuner::ForwardTimes> forward = overlap_.take_times();
  if (forward && driver_) driver_->learn_forward(*forward);
  commands_.carry_out(received.value().command);
  if (driver_ && learning_.known() == Known::all) tune(received.value());
  send_buffers(received.value().new_buffers || learning_.known() != Known::all);
  if (learning_.known() == Known::content) learning_.learn_order();
  pass_.end();
  updates_.end_pass();
  return received.value();
}

// On rank 0: the tuner takes the report of a step and decides what comes next.
void Session::tune(const tuner::StepProtocol::Received& received) {
  if (received.counts && driver_->lacks_uses()) {
    driver_->learn_uses(
        exec::codec_uses(gradients().table(), gradients().arenas(), settings().codecs, job_.device.get()));
  }
  commands_.announce(driver_->on_step(received, protocol_));
}

// A parameter that this rank did not use takes part too, with the gradient accumulated before, or with zeros.
void Session::send_missing() {
  look_at_buffers();
  for (size_t p = 0; p < gradients().table().tensors.size(); ++p) {
    if (!pass_.is_ready(p)) send(static_cast<int32_t>(p));
  }
}

// An optimizer that steps inside backward has no averages yet, so ranks would drift apart.
void Session::check_only_read() {
  if (updates_.none_in_pass(protocol_.step())) return;
  refuse(
      "parameters were changed within a backward pass (by a hook that steps an optimizer?), where gradients are this "
      "rank's own; they are averages when backward() returns, and may be used from then on");
}

// At the end of a pass all ranks have rank 0's buffers, so that an evaluation after the update finds equal ones.
// Buffers that no rank changed are not sent, because that would cost delays of the link.
void Session::send_buffers(bool are_new) {
  if (job_.model->buffer_layout() != alike_.buffers) {
    refuse(
        "a buffer changed its shape or dtype within a backward pass, where other ranks can not be told any more; "
        "allowed is to change it before or after that");
  }
  if (are_new) module_broadcast_.broadcast_buffers(job_.model->buffers());
}

// --- updates ---------------------------------------------------------------------------------------------------------

void Session::zero_grad() {
  check_between_passes();
  // Averages that no step() used: their time belongs to no step.
  if (pass_.state() == BackwardPass::State::averaged) protocol_.exclude();
  // Another thread's watch cannot see this thread's use of parameters.
  if (overlap_.is_elsewhere()) explained(Final::every_error, [this] { finish_late(); });
  pass_.forget();
  updates_.drop_gradients();
  job_.model->drop_gradients();
}

torch::Tensor Session::step(const std::function<torch::Tensor()>& closure) {
  check_between_passes();
  torch::Tensor loss;
  if (closure) {
    if (core::Status can = job_.stepper->can_be_split(/*has_closure=*/true); !can) {
      overlap_.turn_off(error_of(core::Exception(can.error())).message);
    }
    const torch::AutoGradMode enable(true);
    loss = closure();
    check_between_passes();
  }
  explained(Final::every_error, [this] { check_unchanged(); });
  if (core::Status updated = overlap_.update(); !updated) fail(updated.error());
  end_update();
  return loss;
}

void Session::begin_update() {
  check_between_passes();
  overlap_.turn_off("the program runs the update itself, and not step()");
  explained(Final::every_error, [this] {
    finish_late();
    check_unchanged();
  });
}

bool Session::end_update(size_t optimizer) {
  RECORD_USER_SCOPE("gradtune::end_update");
  check_between_passes();
  const bool averaged = pass_.state() == BackwardPass::State::averaged;
  const Updates::Reported reported = updates_.report(optimizer, averaged);
  if (!reported.ends_step) return false;
  if (reported.lacks_average) {
    warnings_.once(Warnings::Kind::step_without_average,
                   "step() was called after backward passes that were all under no_sync(): their gradients are this "
                   "rank's own, and ranks drift apart");
  }
  averaged ? peers_.enter(Call::step, protocol_.step()) : protocol_.exclude();  // no pass communicated
  end_step();
  return true;
}

void Session::end_step() {
  protocol_.end_step(step_clock_.end_step());
  pass_.forget();
  updates_.end_step();
}

// Checks that the model is still the one that the ranks compared.
void Session::check_unchanged() {
  gradients().check_hooked().value();
  job_.model->check_unchanged().value();
  job_.stepper->check_unchanged().value();
}

// --- work in flight --------------------------------------------------------------------------------------------------

// Finishes all work of the previous step before a new one begins, or before strategies or gradients change.
void Session::settle_step() {
  finish_late();
  if (core::Status settled = executor_.drain(); !settled) fail(settled.error());
  report_times();
  step_clock_.settle(executor_.times());
}

void Session::finish_late() {
  if (core::Status finished = overlap_.finish(); !finished) fail(finished.error());
}

// Reports the times of the last step, once all its work has ended.
void Session::report_times() {
  if (!ran_) return;
  show_buckets(executor_.program(), executor_.op_times(), *clock_);
  if (driver_ && learning_.known() == Known::all) {
    driver_->ran(ran_->step, ran_->slot, executor_.program(), executor_.op_times());
  }
  ran_.reset();
}

void Session::synchronize() {
  check_usable();
  // During a backward pass no work of the previous step is left.
  if (!pass_.is_running()) explained(Final::every_error, [this] { finish_late(); });
}

// --- failures --------------------------------------------------------------------------------------------------------

void Session::check_usable() {
  if (pass_end_.was_left_elsewhere() && pass_.is_running()) pass_was_left();
  if (failure_) throw core::Exception(*failure_);
  if (!gradients().ended()) return;
  refuse("the optimizer was wrapped again since, and this wrap has ended; use the newer one");
}

void Session::check_between_passes() {
  check_usable();
  if (!pass_.is_running()) return;
  fail({core::Error::Code::invalid,
        "a backward pass ended with an exception, or this was called inside of one; averages of its gradients "
        "can not be completed any more"});
}

// Averages that no step() used are allowed, as in a step that is skipped: nothing is in flight then.
void Session::check_out_of_backward(const char* what) {
  check_usable();
  if (!pass_.is_running()) return;
  refuse(std::string(what) +
         " was called inside of a backward pass, or after one that ended with an exception; it may be called before "
         "or after a backward pass");
}

void Session::fail(const core::Error& error) {
  note_failure(error);
  throw core::Exception(*failure_);
}

void Session::note_failure(const core::Error& error) {
  if (!failure_) failure_ = core::Error{error.code, peers_.explain(error, protocol_.step())};
}

// --- what users ask --------------------------------------------------------------------------------------------------

void Session::broadcast_buffers() {
  check_between_passes();
  protocol_.exclude();
  peers_.enter(Call::broadcast_buffers, protocol_.step());
  explained(Final::every_error, [this] {
    job_.model->buffer_layout();  // finds the current buffers
    peers_.must_agree("buffers", to_text(describe_buffers(*job_.model)));
    module_broadcast_.broadcast_buffers(job_.model->buffers());
  });
}

void Session::save(torch::serialize::OutputArchive& archive) {
  synchronize();
  job_.stepper->save(archive);
}

void Session::load(torch::serialize::InputArchive& archive) {
  synchronize();
  job_.stepper->load(archive);
  protocol_.exclude();
}

void Session::save_checkpoint(const std::string& folder) {
  enter_checkpoint(Call::save_checkpoint);
  protocol_.exclude();  // the next step includes the time of saving
  explained(Final::between_ranks, [&] {
    peers_.must_agree("the steps done at a checkpoint", std::to_string(protocol_.step()));
    settle_step();
    Resume(parts(), learning_, commands_, {}).save(folder);
  });
}

void Session::load_checkpoint(const std::string& folder) {
  enter_checkpoint(Call::load_checkpoint);
  explained(Final::between_ranks, [&] {
    settle_step();
    Resume resume(parts(), learning_, commands_, [this](const core::Error& error) { failure_ = error; });
    const std::string why = resume.load(folder);
    if (peers_.rank() == 0 && !settings().quiet) {
      front_->say("gradtune: checkpoint of step " + std::to_string(protocol_.step()) + " loaded, tuning " +
                  (why.empty() ? "goes on" : "starts again: " + why) + "\n");
    }
  });
  protocol_.exclude();
  step_clock_.restart();
  pass_.forget();
  updates_.forget();
}

void Session::export_strategy(const std::string& path) const {
  if (!driver_) return;
  const bool knows = learning_.known() == Known::all;
  if (!knows && !learning_.imported()) refuse("there is no strategy to export before the first step is done");
  const policies::Candidate& candidate = knows ? driver_->chosen() : protocol_.in_force();
  tuner::write_file_atomically(files_of(job_.fragment, path), commands_.strategy_text(candidate, /*evidence=*/knows))
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
  progress.step_ms = step_clock_.step_ms();
  progress.encode_ms = step_clock_.last().encode_ms;
  progress.decode_ms = step_clock_.last().decode_ms;
  progress.wait_ms = step_clock_.last().wait_ms;
  progress.bytes = step_clock_.last().bytes;
}

Optimizer::Result Session::result() const {
  if (results_.last()) return *results_.last();
  // Before any decision, this is the initial strategy.
  const tuner::Standing standing{
      .state = settings().tuning_budget == 0 ? tuner::Standing::State::pinned : tuner::Standing::State::undecided,
      .label = protocol_.in_force().label};
  Optimizer::Result result = result_of(standing, settings().fidelity);
  result.description = core::describe(protocol_.in_force().strategy, gradients().table());
  return result;
}

std::string Session::describe_in_force() const { return core::describe(executor_.strategy(), gradients().table()); }

}  // namespace gradtune
