// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The module gradtune._gradtune, the extension that the Python package calls. Its types are in _gradtune.pyi.
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <tuple>

#include "hooks/nested_pass.h"
#include "hooks/round_options.h"
#include "hooks/rounds_file.h"
#include "python/python_rounds.h"
#include "python/python_session.h"

namespace gradtune {
namespace {

py::dict dict_of(const Optimizer::Progress& progress) {
  using namespace py::literals;
  return py::dict("step"_a = progress.step, "epoch"_a = progress.epoch, "stage"_a = progress.stage,
                  "strategy"_a = progress.strategy, "nonfinite_steps"_a = progress.nonfinite_steps,
                  "step_ms"_a = progress.step_ms, "encode_ms"_a = progress.encode_ms,
                  "decode_ms"_a = progress.decode_ms, "wait_ms"_a = progress.wait_ms, "bytes"_a = progress.bytes);
}

py::dict dict_of(const Optimizer::Result& result) {
  using namespace py::literals;
  return py::dict("decided"_a = result.decided, "committed"_a = result.committed, "baseline_ms"_a = result.baseline_ms,
                  "committed_ms"_a = result.committed_ms, "predicted_ms"_a = result.predicted_ms,
                  "gain"_a = result.gain, "gain_low"_a = result.gain_low, "gain_high"_a = result.gain_high,
                  "steps"_a = result.steps, "cost_ms"_a = result.cost_ms, "cost_share"_a = result.cost_share,
                  "first_commit"_a = result.first_commit, "story"_a = result.story, "strategy"_a = result.strategy,
                  "description"_a = result.description, "fidelity"_a = result.fidelity);
}

py::dict dict_of(const Rounds::Progress& progress) {
  using namespace py::literals;
  return py::dict("rounds"_a = progress.rounds, "updates"_a = progress.updates,
                  "updates_a_round"_a = progress.updates_a_round, "delay"_a = progress.delay,
                  "exchange_ms"_a = progress.exchange_ms, "update_ms"_a = progress.update_ms, "lost"_a = progress.lost);
}

// A round in Python: the numbers of its updates and of its delay.
using RoundNumbers = std::pair<int64_t, int64_t>;
RoundNumbers numbers_of(const tuner::RoundShape& round) { return {round.updates, round.delay}; }
tuner::RoundShape round_of(const RoundNumbers& numbers) { return {.updates = numbers.first, .delay = numbers.second}; }

// The options of rounds in Python: most, least, delay, fragments, dense_steps, outer_lr, outer_momentum, uneven.
using RoundsPlan = std::tuple<int64_t, int64_t, std::optional<int64_t>, int64_t, int64_t, double, double, bool>;
RoundOptions options_of(const RoundsPlan& plan) {
  return std::apply([](auto... values) { return RoundOptions{values...}; }, plan);
}

void define_rounds(py::module_& module) {
  py::class_<PythonRounds, PythonSession>(module, "Rounds")
      .def(py::init([](const py::object& source, const std::shared_ptr<RegistrationCount>& count,
                       const c10::intrusive_ptr<c10d::ProcessGroup>& group, const py::dict& options,
                       const RoundsPlan& plan, const RoundNumbers& first) {
        return std::make_unique<PythonRounds>(source, count, group, options, options_of(plan), round_of(first));
      }))
      .def("end_round", &PythonRounds::end_round)
      .def("complete", &PythonRounds::complete)
      .def("round_progress", [](PythonRounds& rounds) { return dict_of(rounds.round_progress()); })
      .def("shape", [](const PythonRounds& rounds) { return numbers_of(rounds.shape()); })
      .def("take_lost_here", &PythonRounds::take_lost_here)
      .def("outer_momenta", &PythonRounds::outer_momenta)
      .def("restore",
           [](PythonRounds& rounds, int64_t count, const RoundNumbers& round,
              const std::vector<torch::Tensor>& momenta) { rounds.restore(count, round_of(round), momenta); })
      .def("allow", [](PythonRounds& rounds, const RoundsPlan& plan) { rounds.allow(allowed(options_of(plan))); });

  module.def("check_rounds", [](const RoundsPlan& plan) { check(options_of(plan)); });
}

}  // namespace

PYBIND11_MODULE(_gradtune, module) {
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const core::Exception& error) {
      set_python_error(error);
    } catch (python_error& error) {  // thrown by a hook that FSDP called
      error.restore();
    }
  });

  py::class_<RegistrationCount, std::shared_ptr<RegistrationCount>>(module, "RegistrationCount")
      .def(py::init<>())
      .def("add", [](RegistrationCount& count) { count.value.fetch_add(1, std::memory_order_relaxed); });

  using Brings = PythonSession::Brings;
  py::enum_<Brings>(module, "Brings")
      .value("hooks", Brings::hooks)
      .value("ddp", Brings::ddp)
      .value("units", Brings::units)
      .value("changes", Brings::changes);

  module.def("is_nested_pass", &is_nested_pass);

  py::class_<PythonSession>(module, "Session")
      .def(py::init<py::object, std::shared_ptr<RegistrationCount>, const c10::intrusive_ptr<c10d::ProcessGroup>&,
                    const py::dict&, Brings>())
      .def("attach", [](PythonSession& session, const std::shared_ptr<c10d::Reducer>& reducer,
                        const c10::intrusive_ptr<c10d::ProcessGroup>& group) { session.attach(*reducer, group); })
      .def("hand_over", &PythonSession::hand_over)
      .def("begin_pass", &PythonSession::begin_pass)
      .def("end_pass", &PythonSession::end_pass)
      .def("begin_update", &PythonSession::begin_update)
      .def("end_update", &PythonSession::end_update)
      .def("enter_no_sync", &PythonSession::enter_no_sync)
      .def("leave_no_sync", &PythonSession::leave_no_sync)
      .def("broadcast_buffers", &PythonSession::broadcast_buffers)
      .def("exclude_step", &PythonSession::exclude_step)
      .def("export_strategy", &PythonSession::export_strategy)
      .def("save_checkpoint", &PythonSession::save_checkpoint)
      .def("load_checkpoint", &PythonSession::load_checkpoint)
      .def("progress", [](PythonSession& session) { return dict_of(session.progress()); })
      .def("result", [](PythonSession& session) { return dict_of(session.result()); })
      .def("learn_round_length", [](PythonSession& session,
                                    const RoundsPlan& plan) { session.learn_round_length(allowed(options_of(plan))); })
      .def("compare_rounds",
           [](PythonSession& session, const RoundsPlan& plan) { session.compare_rounds(options_of(plan)); })
      .def("save_synchronous", &PythonSession::save_synchronous)
      .def("saved_rounds",
           [](PythonSession& session, const std::string& folder, int64_t fragments) {
             const SavedRounds saved = session.saved_rounds(folder, fragments);
             return std::make_pair(numbers_of(saved.round), saved.dense_steps);
           })
      .def("check_outer_momenta", &PythonSession::check_outer_momenta)
      .def("round_shape", [](const PythonSession& session) { return numbers_of(session.round_shape()); })
      .def("close", &PythonSession::close);
  define_rounds(module);
}

}  // namespace gradtune
