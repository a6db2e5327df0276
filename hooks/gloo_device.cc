// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/gloo_device.h"

#include <sched.h>

#include <cstdlib>
#include <string>

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

std::shared_ptr<gloo::transport::Device> make_gloo_device() {
  const BatchPolicy policy;
  const char* const interfaces = std::getenv("GLOO_SOCKET_IFNAME");
  if (interfaces == nullptr || *interfaces == '\0') return c10d::ProcessGroupGloo::createDefaultDevice();
  const std::string names(interfaces);
  return c10d::ProcessGroupGloo::createDeviceForInterface(names.substr(0, names.find(',')));
}

}  // namespace gradtune
