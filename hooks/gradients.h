// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The gradients of a module in arenas (engine/core/arenas.h), in an order that can be changed, and the hooks that
// report finished gradients. A parameter's gradient is a tensor over its slot of the arena, as with DDP's
// gradient_as_bucket_view. If the user or autograd replaces that tensor, it is put back. A sparse gradient (COO)
// stays as it is, and its average is sparse too: a slot that is never written uses no memory. On a device it is
// coalesced, and laid out in its slot.
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
#include "hooks/c10d/torch_versions.h"
#include "hooks/model.h"
#include "hooks/warnings.h"

namespace gradtune {

// The strides of a parameter's gradient: those of the parameter if it is dense (channels_last), else row-major.
std::vector<int64_t> gradient_strides(const torch::Tensor& parameter);

// The way in which a session gets the gradients of a backward pass.
enum class Arrival : uint8_t {
  hooks,        // from its own autograd hooks
  handed_over,  // another component collects them and calls Session::hand_over
};

class Gradients {
 public:
  // Collects the model's parameters that require gradients and have elements, in the reverse of their order of
  // registration, which is the likely order of backward. Throws for parameters that cannot be trained, see wrap(),
  // and for parameters of another live wrap. A wrap with the same `owner` is no error: it does its pending updates
  // now, and ends when the hooks are set.
  // `device`: the device of the parameters; null: the CPU.
  Gradients(const Model& model, const void* owner, Warnings& warnings, Arrival arrival = Arrival::hooks,
            std::shared_ptr<exec::Device> device = nullptr);
  ~Gradients();
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;

  // `position` is an index into the table.
  const core::GradientTable& table() const { return table_; }
  exec::Arenas arenas() const;

  // Lays out the arenas in another order: new position p holds the tensor of old position order[p]. Gradients that
  // are defined keep their values.
  void lay(const std::vector<int32_t>& order);
  // Touches the arenas' pages, so that page faults do not happen in a step; but pages of gradients that come as rows
  // may stay untouched.
  void touch();

  struct Calls {
    // Called on the thread that runs backward, each time a gradient was accumulated.
    std::function<void(int32_t position)> ready;
    // Polled by a newer wrap of the same optimizer while it waits for other ranks, which may not have wrapped again.
    std::function<core::Status()> alarm;
    // Autograd is about to compile a backward pass, in which hooks would not run. Throws.
    std::function<void()> compiled;
    // A newer wrap of the same optimizer is about to look at the parameters. Does all pending updates.
    std::function<void()> finish;
  };
  void set_hooks(Calls calls);

  // An error that names a parameter whose hook is gone or whose shape changed. Moving or converting a parameter
  // makes autograd drop its hook. New memory of the same kind is no change (`p.data = ...`, model.to(the same
  // device)). Allocates nothing.
  core::Status check_hooked() const;

  // The alarm of the wrap with the same owner that this one will end; null if there is none.
  const std::function<core::Status()>* alarm_before() const;

  // True if the same optimizer was wrapped again; then hooks and gradients belong to the newer wrap.
  bool ended() const { return ended_; }

  // The parameters of the table, in the order of the model.
  std::vector<torch::Tensor> trained() const;
  // -1 if the parameter is not in the table
  int32_t position_of(const torch::Tensor& parameter) const;

  // With Arrival::handed_over: takes a gradient and returns its position, as position_of().
  int32_t hand_over(const torch::Tensor& parameter, torch::Tensor gradient);
  // With Arrival::handed_over: copies the average to the tensor that was handed over, or returns another tensor if
  // the average is sparse, and releases the tensor.
  void give_back(const torch::Tensor& parameter, torch::Tensor& gradient);

  // The form of a gradient. The values are ordered: the largest one over all ranks is the form of the average.
  enum class Use : uint8_t { none, rows, dense };

  Use use_of(int32_t position) const;

  // A gradient as it is now. A dense gradient whose values are not laid out like its slot is copied to the slot.
  // Repeated rows must be added in torch's order, which DDP's sums follow. Throws if the dtype, device or layout is
  // not supported.
  struct Brought {
    exec::Arrived arrived;
    Use use = Use::dense;
    std::array<torch::Tensor, 3> memory = {};  // memory of gradients outside the arena
  };
  Brought bring(int32_t position);
  // Keeps the memory until let_go().
  void keep(Brought brought);
  void let_go() { kept_.clear(); }

  // Sets the gradient to its slot, or to a coalesced sparse tensor of the rows that are listed; without a list, of
  // the rows of the slot that are not zero.
  void give_dense(int32_t position);
  void give_rows(int32_t position, const exec::Workspace::Listed& listed);

  // The share of a tensor's rows that its current sparse gradient has.
  double share_of_rows(int32_t position) const;
  // The share of rows that are not zero in a sample for this step, for a dense gradient at `values` (null: in its
  // slot). Negative if the sample is of no use: the tensor has no rows, is small, or is on a device.
  double sampled_share(int32_t position, const std::byte* values, int64_t step) const;
  // Marks a tensor as one whose gradients come as rows, with the shares of rows on one rank and in the average.
  void set_rows(int32_t position, double of_one, double of_all);
  void set_content(int32_t position, const core::Content& content);

  // Removes the gradient of a parameter that no rank used, so that optimizers skip it.
  void forget(int32_t position);

  const torch::Tensor& parameter(int32_t position) const { return at(position).tensor; }
  const torch::Tensor& slot(int32_t position) const { return at(position).slot; }
  // True if the parameter's gradient is its slot: neither removed nor a tensor of the user.
  bool has_slot(int32_t position) const { return at(position).tensor.grad().is_same(at(position).slot); }
  // True if the gradient came as rows: on this rank in any pass since the wrap, or on any rank in the first pass.
  bool was_sparse(int32_t position) const;
  // The same on all ranks: true if some gradient was sparse in the first pass, or some average since the wrap.
  bool averages_were_sparse(int32_t position) const;

  // A few of the parameters' values as they are now, different ones in each step, which an optimizer's step changes.
  // On a device, now is behind the work so far on the current stream.
  void take_sample(int64_t step);
  // A hash of the last sample. Waits for the device.
  uint64_t sample() const;

 private:
  class Hook;
  struct Parameter {
    torch::Tensor tensor;
    torch::Tensor slot;                 // the gradient, over the arena
    std::byte* memory;                  // of the slot
    torch::Tensor given;                // the tensor that was handed over
    versions::NodePointer accumulator;  // keeps the hook alive
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
  void check_kind(int32_t position, const torch::Tensor& gradient) const;  // throws if it is not supported
  bool bring_rows(const core::TensorInfo& tensor, const torch::Tensor& gradient, const Parameter& parameter,
                  Brought& brought);

  const void* const owner_;
  Warnings& warnings_;
  const Arrival arrival_;
  const std::shared_ptr<exec::Device> device_;
  bool ended_ = false;
  core::GradientTable table_;
  std::vector<Parameter> parameters_;                   // by position
  std::vector<int32_t> position_of_;                    // by order of registration, which hooks use
  std::unordered_map<const void*, size_t> registered_;  // for Arrival::handed_over
  core::ArenaLayout layout_;
  struct ArenaMemory {
    std::shared_ptr<exec::Device> device;  // must outlive the bytes
    exec::AlignedBytes bytes;
  };
  std::vector<std::shared_ptr<ArenaMemory>> arenas_;  // also owned by the tensors over them, which users may keep
  std::vector<torch::Tensor> kept_;                   // memory of gradients that arrived in the current pass
  compress::RowScratch scratch_;
  exec::AlignedBytes sample_;
  core::Fence sampled_;            // on a device
  uint64_t sampled_versions_ = 0;  // on a device
  Calls calls_;
};

}  // namespace gradtune
