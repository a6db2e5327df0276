// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/operator_watch.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <functional>
#include <optional>

namespace gradtune {

// LibTorch's callbacks are plain functions, so their data belongs to the thread.
//
// Autograd replaces a thread's callbacks by those that were set when its pass began, and restores them when the pass
// ends (as all code does that carries the state of a thread). A callback that was added meanwhile is lost, and one
// that was removed returns. So the code always checks whether the callback is there.
struct WatchesOfThread {
  std::vector<std::shared_ptr<OperatorWatch::Armed>> armed;
  std::optional<at::CallbackHandle> callback;
  bool is_inside = false;  // within a callback

  static WatchesOfThread& here() {
    thread_local WatchesOfThread watches;
    return watches;
  }

  bool is_registered() const {
    if (!callback) return false;
    const at::RecordFunctionCallbacks& registered = at::get_record_function_tls_().sorted_tls_callbacks_;
    return std::ranges::any_of(registered, [this](const auto& entry) { return entry.handle_ == *callback; });
  }

  void add() {
    if (is_registered()) return;
    callback = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&on_operator).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  }

  void remove_disarmed() {
    std::erase_if(armed, [](const auto& each) { return each->watch == nullptr; });
    if (armed.empty() && is_registered()) at::removeCallback(*callback);
  }

  void show(const at::RecordFunction& function) {
    // Watches that are armed meanwhile come after these.
    for (size_t i = 0, count = armed.size(); i < count; ++i) {
      // Disarming it from inside must not destroy the object that is being called.
      const std::shared_ptr<OperatorWatch::Armed> each = armed[i];
      const auto visit = [&](const torch::Tensor& tensor) {
        if (const OperatorWatch* watch = each->watch) watch->saw(tensor);
      };
      if (OperatorWatch* watch = each->watch) watch->listener_.before_operator();
      for (const c10::IValue& input : function.inputs()) {
        if (input.isTensor()) {
          visit(input.toTensor());
        } else if (input.isList()) {
          for (const c10::IValue& item : input.toListRef()) {
            if (item.isTensor()) {
              visit(item.toTensor());
            } else if (!item.isNone()) {
              break;
            }
          }
        }
      }
    }
  }

  static std::unique_ptr<at::ObserverContext> on_operator(const at::RecordFunction& function) {
    WatchesOfThread& watches = here();
    if (watches.is_inside) return nullptr;
    {
      const at::DisableRecordFunctionGuard unseen;
      watches.is_inside = true;
      watches.show(function);
      watches.is_inside = false;
    }
    watches.remove_disarmed();
    return nullptr;
  }
};

void OperatorWatch::watch(std::vector<Watched> all) {
  std::erase_if(all, [](const Watched& each) { return each.memory == nullptr; });
  std::ranges::sort(all, std::less<>(), &Watched::memory);
  watched_ = std::move(all);
}

const void* OperatorWatch::memory_of(const torch::Tensor& tensor) {
  if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->has_storage()) return nullptr;
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

void OperatorWatch::saw(const torch::Tensor& tensor) const noexcept {
  const void* const memory = memory_of(tensor);
  if (memory == nullptr) return;
  auto found = std::ranges::lower_bound(watched_, memory, std::less<>(), &Watched::memory);
  for (; found != watched_.end() && found->memory == memory; ++found) listener_.before_use(found->number);
}

void OperatorWatch::arm() {
  WatchesOfThread& watches = WatchesOfThread::here();
  if (is_armed_here()) return watches.add();
  disarm();
  armed_ = std::make_shared<Armed>();
  armed_->watch = this;
  thread_ = std::this_thread::get_id();
  watches.armed.push_back(armed_);
  watches.add();
}

// Another thread's callback notices this at its next operator.
void OperatorWatch::disarm() {
  if (!is_armed()) return;
  armed_->watch = nullptr;
  armed_.reset();
  WatchesOfThread& watches = WatchesOfThread::here();
  if (thread_ == std::this_thread::get_id() && !watches.is_inside) watches.remove_disarmed();
}

}  // namespace gradtune
