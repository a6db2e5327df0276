// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "python/python_session.h"

#include <pybind11/stl.h>

#include <type_traits>
#include <utility>

#include "engine/core/hash.h"
#include "hooks/option_table.h"
#include "hooks/round_options.h"
#include "hooks/rounds.h"

namespace gradtune {
namespace {

Options options_of(const py::dict& given) {
  Options options;
  size_t taken = 0;
  for (const OptionRow& row : option_table()) {
    if (!given.contains(row.name)) continue;
    const auto take = [&](const auto& type) {
      auto& into = options.*type.member;
      into = given[row.name].cast<typename std::remove_reference_t<decltype(into)>::value_type>();
    };
    try {
      std::visit(take, row.type);
    } catch (const py::cast_error&) {  // the package has checked types, so this is an integer of more than 64 bits
      throw core::Exception({core::Error::Code::invalid,
                             "gradtune: option " + std::string(row.name) + " (argument) is \"" +
                                 py::str(given[row.name]).cast<std::string>() + "\": " + out_of_range(row).message});
    }
    ++taken;
  }
  core::check(taken == given.size(), "every option of the package is one of the table");
  return options;
}

}  // namespace

PythonSession::PythonSession(py::object source, std::shared_ptr<RegistrationCount> count,
                             const c10::intrusive_ptr<c10d::ProcessGroup>& group, const py::dict& options,
                             Brings brings, int64_t fragments) {
  const Options given = options_of(options);
  const auto lists = std::make_shared<PythonLists>(std::move(source), std::move(count));
  Fragment fragment{.count = fragments};
  const auto make = [&](const Settings& settings) {
    lists->check();
    Trained trained;
    trained.model =
        model_of(fragment, settings.broadcast_buffers, settings.ignored, [&](bool with_buffers, const auto& ignored) {
          return std::make_unique<ListedModel>(lists, with_buffers, ignored);
        });
    trained.fragment = fragment;
    trained.stepper = std::make_unique<ListedStepper>(lists);
    trained.arrival = brings == Brings::hooks ? Arrival::hooks : Arrival::handed_over;
    trained.sums = brings == Brings::units;
    return trained;
  };
  std::optional<core::Exception> failed;
  {
    const py::gil_scoped_release release;
    try {
      for (; fragment.number < fragments; ++fragment.number) {
        sessions_.push_back(
            std::make_unique<Session>(make, group, given, std::make_unique<const core::SteadyClock>(), front_));
      }
      if (brings == Brings::units) units_ = std::make_unique<ReplicaUnits>(*sessions_.front());
    } catch (const core::Exception& error) {
      failed = error;
      sessions_.clear();
    }
  }
  if (failed) front_->throw_to_python(*failed);
  take_snapshot();
}

PythonSession::~PythonSession() { close(std::nullopt); }

Session& PythonSession::open() const {
  if (!sessions_.empty()) return *sessions_.front();
  throw core::Exception(
      {core::Error::Code::invalid, "gradtune: the session was closed; wrap the optimizer again to go on with it"});
}

void PythonSession::run(const std::function<void(Session&)>& body) {
  std::optional<core::Exception> failed;
  {
    const py::gil_scoped_release release;
    try {
      body(open());
    } catch (const core::Exception& error) {
      failed = error;
    }
  }
  if (failed) front_->throw_to_python(*failed);
}

void PythonSession::run_each(const std::function<void(Session&)>& body) {
  run([&](Session&) {
    for (const auto& session : sessions_) body(*session);
  });
}

void PythonSession::attach(c10d::Reducer& reducer, const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  bridge_ = DdpBridge::build(reducer, group, open());
}

void PythonSession::hand_over(const torch::Tensor& unit, const torch::Tensor& reduced, const torch::Tensor& value,
                              double divisor) {
  run([&](Session& session) {
    session.enter_autograd_pass();
    units_->hand_over({.unit = unit, .reduced = reduced, .value = value, .divisor = divisor});
  });
}

void PythonSession::begin_pass() {
  run([](Session& session) { session.begin_pass(); });
}

void PythonSession::end_pass() {
  run([](Session& session) { session.end_pass(); });
}

void PythonSession::begin_update() {
  run([](Session& session) { session.begin_update(); });
}

bool PythonSession::end_update(size_t optimizer) {
  bool ended = false;
  run([&](Session& session) {
    ended = session.end_update(optimizer);
    update_ended();
  });
  return ended;
}

void PythonSession::update_ended() {
  trainer_ = std::this_thread::get_id();
  take_snapshot();
}

void PythonSession::learn_round_length(const tuner::UpdatesARound& allowed) {
  run([&](Session& session) {
    length_.emplace(allowed, tuner::RoundShape{.updates = allowed.least});
    session.on_averaged([this](const auto& received) { length_->learn(received.report); });
  });
}

void PythonSession::compare_rounds(const RoundOptions& options) {
  run([&](Session& session) {
    session.must_agree("options of rounds", describe(options));
    check_fragments(options.fragments, trained().size());
  });
}

std::vector<torch::Tensor> PythonSession::trained() const {
  std::vector<torch::Tensor> all;
  for (const auto& session : sessions_) {
    const std::vector<torch::Tensor> of_one = session->trained();
    all.insert(all.end(), of_one.begin(), of_one.end());
  }
  return all;
}

void PythonSession::save_synchronous(const std::string& folder, int64_t dense_steps) {
  run([&](Session& session) { save_rounds({&session}, folder, {.dense_steps = dense_steps}); });
}

SavedRounds PythonSession::saved_rounds(const std::string& folder, int64_t fragments) {
  SavedRounds saved;
  run([&](Session& session) {
    saved = load_rounds(session, folder);
    if (!saved.is_synchronous()) check_fits(saved, folder, fragments, trained());
  });
  return saved;
}

void PythonSession::check_outer_momenta(const std::vector<torch::Tensor>& momenta) {
  run([&](Session&) { check_momenta(momenta, trained()); });
}

void PythonSession::leave_no_sync() {
  if (!sessions_.empty()) --*open().no_sync();
}

void PythonSession::broadcast_buffers() {
  run_each([](Session& session) { session.broadcast_buffers(); });
}

void PythonSession::exclude_step() {
  run_each([](Session& session) { session.exclude_step(); });
}

void PythonSession::export_strategy(const std::string& path) {
  run_each([&](Session& session) { session.export_strategy(path); });
}

void PythonSession::save_checkpoint(const std::string& folder) {
  run([&](Session& session) { session.save_checkpoint(folder); });
}

void PythonSession::load_checkpoint(const std::string& folder) {
  run([&](Session& session) { session.load_checkpoint(folder); });
}

// Called after every update. A result describes a whole strategy, so it is copied only when it changed.
void PythonSession::take_snapshot() {
  const Session& first = open();
  core::Hasher now;
  for (const auto& session : sessions_) {
    now.add(static_cast<uint64_t>(session->epoch()));
    now.add(static_cast<uint64_t>(session->results_taken()));
  }
  std::optional<Optimizer::Result> result;
  if (std::exchange(result_hash_, now.value()) != now.value()) result = result_of(sessions_);
  const std::lock_guard lock(mutex_);
  first.tell(progress_);
  if (result) result_ = std::move(*result);
}

Optimizer::Progress PythonSession::progress() {
  const py::gil_scoped_release release;
  if (!sessions_.empty() && is_trainer()) return open().progress();
  const std::lock_guard lock(mutex_);
  return progress_;
}

Optimizer::Result PythonSession::result() {
  const py::gil_scoped_release release;
  if (!sessions_.empty() && is_trainer()) return result_of(sessions_);
  const std::lock_guard lock(mutex_);
  return result_;
}

void PythonSession::close(const std::optional<std::string>& failure) {
  if (sessions_.empty()) return;
  if (bridge_) bridge_->end();
  const py::gil_scoped_release release;
  std::vector<std::unique_ptr<Session>> sessions;
  sessions.swap(sessions_);
  if (!sessions.front()->is_of_this_process()) {
    for (std::unique_ptr<Session>& session : sessions) static_cast<void>(session.release());
    return;
  }
  Optimizer::Result result = result_of(sessions);
  {
    const std::lock_guard lock(mutex_);
    sessions.front()->tell(progress_);
    result_ = std::move(result);
  }
  if (!failure) return;
  for (const std::unique_ptr<Session>& session : sessions) session->give_up(*failure);
}

}  // namespace gradtune
