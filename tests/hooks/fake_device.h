// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A device for LibTorch without one, named "fake:0": what hooks/ do with streams, events and tensors of a device
// is done by real models in real processes, without a GPU.
//
//   streams   threads; what is asked for is done in order, later
//   memory    mapped twice: what tensors have can not be touched by anybody, streams reach it by the other mapping. So
//             what is done with it other than by asking a stream ends in a segmentation fault. What is freed is filled
//             with a pattern at once
//   operators by the CPU's: inputs are waited for and copied, results are written by the stream, later
//
// Waits can be left out, and work delayed, so that tests see what a missing wait does.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/exec/kernels.h"

namespace gradtune::test {

// Streams by what a session asks them for, in the order in which it makes them: "current" is the model's.
struct FakeDeviceFaults {
  // Before each piece of work on that stream. Microseconds.
  std::function<int64_t(const std::string& stream)> delay_us = {};
  // Whether a stream, or the host ("host"), does not wait for an event of another one.
  std::function<bool(const std::string& from, const std::string& to)> skips_wait = {};
  bool times_events = true;  // as not every device does
};

// Makes LibTorch know the device, once in a process, before its first backward pass.
c10::Device fake_device();

// From now on. Streams that are made from now on are a session's first ones again.
void set_faults(FakeDeviceFaults faults);

// Whether no stream wrote into memory that was freed, up to the end of what streams were asked for so far.
bool freed_memory_is_intact();

// How often a thread recorded or asked for an event whose current device was none: on a node with several GPUs that
// would take memory of the first one.
int64_t event_calls_of_strangers();

// Kernels of the device, which are the host's.
std::unique_ptr<exec::Kernels> fake_kernels();

}  // namespace gradtune::test
