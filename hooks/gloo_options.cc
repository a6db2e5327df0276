// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/gloo_options.h"

#include <sched.h>

namespace gradtune {
namespace {

// Threads that are started while this lives inherit the policy. One that was chosen for this process stays, and so does
// the usual one where the system allows no change: then messages are slower at worst.
class BatchPolicy {
 public:
  BatchPolicy() : is_set_(sched_getscheduler(0) == SCHED_OTHER && set(SCHED_BATCH)) {}
  ~BatchPolicy() {
    if (is_set_) set(SCHED_OTHER);
  }
  BatchPolicy(const BatchPolicy&) = delete;
  BatchPolicy& operator=(const BatchPolicy&) = delete;

 private:
  static bool set(int policy) {
    const sched_param no_priority{};
    return sched_setscheduler(0, policy, &no_priority) == 0;
  }

  const bool is_set_;
};

}  // namespace

c10::intrusive_ptr<c10d::ProcessGroupGloo::Options> make_gloo_options(std::chrono::milliseconds timeout) {
  const BatchPolicy policy;
  return c10d::ProcessGroupGloo::Options::create_default(timeout);
}

}  // namespace gradtune
