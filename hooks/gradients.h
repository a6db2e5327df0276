// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The gradients of a module in arenas (engine/core/arenas.h), in an order that can be laid anew; and the hooks that
// tell when backward has finished one. A parameter's gradient is a tensor over its slot of the arena, as with DDP's
// gradient_as_bucket_view; it is put back whenever user or autograd put another one in its place. A sparse gradient
// (COO) stays as it is, and its average is one too: a slot that nobody writes takes no memory.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/types.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/compress/sparse/rows.h"
#include "engine/core/arenas.h"
#include "engine/core/gradient_table.h"
#include "engine/core/result.h"
#include "engine/exec/arrived.h"
#include "engine/exec/device.h"
#include "engine/exec/memory.h"
#include "engine/exec/workspace.h"
#include "hooks/model.h"
#include "hooks/warnings.h"

namespace gradtune {

// The strides that a parameter's gradient has: its own where they are dense (channels_last), else row-major.
std::vector<int64_t> gradient_strides(const torch::Tensor& parameter);

// How a session comes to the gradients of a backward pass.
enum class Arrival : uint8_t {
  hooks,        // its own, of autograd
  handed_over,  // somebody else collects them, and gives them to Session::hand_over
};

class Gradients {
 public:
  // Collects the model's parameters that require gradients and have elements, in the reverse of their registration
  // (what backward is likely to do). Throws for what can not be trained with, see wrap(), and for parameters that
  // another wrap has which still lives, unless it is one with the same `owner`: that one completes its updates now, and
  // ends when the hooks are set.
  // `device`: null where the parameters are on the CPU, else the one that they are on.
  Gradients(const Model& model, const void* owner, Warnings& warnings, Arrival arrival = Arrival::hooks,
            std::shared_ptr<exec::Device> device = nullptr);
  ~Gradients();
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;

  // `position` is that of the table.
  const core::GradientTable& table() const { return table_; }
  exec::Arenas arenas() const;

  // Lays the arenas in another order: new position p holds what was at old position order[p]. Gradients that are
  // defined keep their values.
  void lay(const std::vector<int32_t>& order);
  // Page faults belong here, and not into a step; but where gradients come as rows there may be none.
  void touch();

  struct Calls {
    // On the thread that runs backward, each time a gradient was accumulated.
    std::function<void(int32_t position)> ready;
    // What a newer wrap of the same optimizer asks while it waits for others, which may not have been wrapped again.
    std::function<core::Status()> alarm;
    // A backward pass that autograd is about to compile, in which hooks would not run: throws.
    std::function<void()> compiled;
    // A newer wrap of the same optimizer is about to look at parameters: does the updates that are still to come.
    std::function<void()> finish;
  };
  void set_hooks(Calls calls);

  // An error that names a parameter whose hook is gone: it was moved or converted since, which makes autograd forget
  // it, or has another shape. Other memory of the same kind is no change (`p.data = ...`, model.to(the same device)).
  // Allocates nothing.
  core::Status check_hooked() const;

  // Of the wrap with the same owner that these will end; null where there is none.
  const std::function<core::Status()>* alarm_before() const;

  // Whether the same optimizer was wrapped again since: then hooks and gradients are the other wrap's.
  bool ended() const { return ended_; }

  // -1 where the parameter is none of the table's.
  int32_t position_of(const torch::Tensor& parameter) const;

  // Where gradients are handed over: takes one, and returns its position, as position_of().
  int32_t hand_over(const torch::Tensor& parameter, torch::Tensor gradient);
  // Where they are handed over: copies the average to where it came from, or gives another one where it is sparse, and
  // forgets that tensor.
  void give_back(const torch::Tensor& parameter, torch::Tensor& gradient);

  // How a gradient came. Ordered: of several ranks' the largest says what the average is.
  enum class Use : uint8_t { none, rows, dense };

  Use use_of(int32_t position) const;

  // What there is of a gradient now. A dense one whose values do not lie as those of its slot is brought there. Rows
  // that repeat are to be added in the order in which torch does, which DDP's sums follow. Throws when its dtype,
  // device or layout can not be served.
  struct Brought {
    exec::Arrived arrived;
    Use use = Use::dense;
    std::array<torch::Tensor, 3> memory = {};  // of what arrived elsewhere
  };
  Brought bring(int32_t position);
  // Until let_go().
  void keep(Brought brought);
  void let_go() { kept_.clear(); }

  // Makes the gradient what is in its slot; or a coalesced sparse one of the rows listed there, or of those in its slot
  // that are not zero.
  void give_dense(int32_t position);
  void give_rows(int32_t position, const exec::Workspace::Listed& listed);

  // Of the rows of a tensor, how large a share its gradient has now, which is sparse.
  double share_of_rows(int32_t position) const;
  // The share of rows that are not zero, as a sample of the step has it, of a dense gradient at `values` (null: in its
  // slot); negative where that is of no use: of tensors without rows, that are small, or on a device.
  double sampled_share(int32_t position, const std::byte* values, int64_t step) const;
  // Marks a tensor whose gradients come as rows: so large a share of them, on one rank and in the average.
  void set_rows(int32_t position, double of_one, double of_all);
  void set_content(int32_t position, const core::Content& content);

  // Takes the gradient of a parameter away that no rank used, so that optimizers skip it.
  void forget(int32_t position);

  const torch::Tensor& parameter(int32_t position) const { return at(position).tensor; }
  const torch::Tensor& slot(int32_t position) const { return at(position).slot; }
  // Whether the parameter's gradient is its slot: not taken away, nor the user's own.
  bool has_slot(int32_t position) const { return at(position).tensor.grad().is_same(at(position).slot); }
  // The gradient came as rows: on this rank in some pass since the wrap, or on any rank in the first one.
  bool was_sparse(int32_t position) const;
  // All ranks know alike: some gradient was sparse in the first pass, or some average since the wrap.
  bool averages_were_sparse(int32_t position) const;

  // A hash of a few of the parameters' values, others in each step, which an optimizer's step changes. Of those on a
  // device always the same: reading them would wait for it.
  uint64_t sample(int64_t step) const;

 private:
  class Hook;
  struct Parameter {
    torch::Tensor tensor;
    torch::Tensor slot;                                  // the gradient, over the arena
    std::byte* memory;                                   // of the slot
    torch::Tensor given;                                 // that was handed over
    std::shared_ptr<torch::autograd::Node> accumulator;  // keeps the hook alive
    uintptr_t hook = 0;
    bool was_sparse = false;
    bool gave_rows = false;
  };
  void allocate();
  void lay_slot(size_t p);
  void keep_slot(size_t p);
  const Parameter& at(int32_t position) const { return parameters_[static_cast<size_t>(position)]; }
  void end();
  torch::Tensor& gradient_of(Parameter& parameter) const;
  const torch::Tensor& gradient_of(const Parameter& parameter) const;
  void adopt(int32_t position);
  bool bring_rows(const core::TensorInfo& tensor, const torch::Tensor& gradient, const Parameter& parameter,
                  Brought& brought);

  const void* const owner_;
  Warnings& warnings_;
  const Arrival arrival_;
  const std::shared_ptr<exec::Device> device_;
  bool ended_ = false;
  core::GradientTable table_;
  std::vector<Parameter> parameters_;                   // by position
  std::vector<int32_t> position_of_;                    // by order of registration, which hooks know
  std::unordered_map<const void*, size_t> registered_;  // where gradients are handed over
  core::ArenaLayout layout_;
  struct ArenaMemory {
    std::shared_ptr<exec::Device> device;  // goes after the bytes
    exec::AlignedBytes bytes;
  };
  std::vector<std::shared_ptr<ArenaMemory>> arenas_;  // also of the tensors over them, which users may keep
  std::vector<torch::Tensor> kept_;                   // memory of what arrived in the pass under way
  compress::RowScratch scratch_;
  Calls calls_;
};

}  // namespace gradtune
