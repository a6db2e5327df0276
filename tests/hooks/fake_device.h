// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A device for LibTorch without hardware, named "fake:0". With it, real models in real processes test the streams,
// events and tensors of hooks/ without a GPU.
//
// Parts of the device:
// - streams: threads, which do the requested work in order, later
// - memory: mapped twice. No thread can access the addresses of tensors; streams use the other mapping. So access
//   without a stream ends in a segmentation fault. Freed memory is filled with a pattern at once
// - operators: the CPU's. They wait for their inputs and copy them, and the stream writes results later
//
// Waits can be left out, and work delayed, so that tests see the effect of a missing wait.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace gradtune::test {

// Streams by their use in a session, in the order in which it makes them: "current" is the model's.
struct FakeDeviceFaults {
  // Delay before each piece of work on that stream, in microseconds.
  std::function<int64_t(const std::string& stream)> delay_us = {};
  // Returns true if a stream, or the host ("host"), does not wait for an event of another one.
  std::function<bool(const std::string& from, const std::string& to)> skips_wait = {};
  bool times_events = true;  // not every device does
};

// Makes LibTorch know the device, once in a process, before its first backward pass.
c10::Device fake_device();

// Applies from now on. The next streams count as a session's first ones again.
void set_faults(FakeDeviceFaults faults);

// Returns true if no stream wrote into freed memory, up to the end of all work requested so far.
bool freed_memory_is_intact();

// Counts events that threads without a current device recorded or asked for. On a node with several GPUs that would
// take memory of the first one.
int64_t event_calls_of_strangers();

// The address at which threads of streams find memory of the device, or pinned memory.
std::byte* reach_of_streams(const void* address);

}  // namespace gradtune::test
