// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Calls its owner when a backward pass of autograd ends, or when it was left with an exception. Autograd holds an
// object for each pass and may outlive the owner with it. For gradients on a device, autograd destroys the object of
// an aborted pass on its own thread while the training thread goes on.
#pragma once

#include <functional>
#include <memory>

namespace gradtune {

class PassEnd {
 public:
  struct Calls {
    // The pass ended. Returns false to be called again at the end of the pass around it, in which this one runs as a
    // node.
    std::function<bool()> ended;
    // On the training thread: the pass ended with an exception.
    std::function<void()> left;
  };
  // Made on the training thread.
  explicit PassEnd(Calls calls);
  ~PassEnd() { stop(); }
  PassEnd(const PassEnd&) = delete;
  PassEnd& operator=(const PassEnd&) = delete;

  // Nothing is called from then on.
  void stop();
  // Called in a hook of the pass.
  void queue();
  // The same, if the end was postponed to the outer pass, which runs on another thread.
  void queue_postponed();
  // True, once, if autograd left the pass on a thread that does not train.
  bool was_left_elsewhere();

 private:
  struct Shared;
  class Callback;
  static void queue(const std::shared_ptr<Shared>& shared);
  const std::shared_ptr<Shared> shared_;
};

}  // namespace gradtune
