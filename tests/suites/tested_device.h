// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The device of the kernel tests: the emulator (tests/emulator), or a GPU (tests/gpu), whichever is linked. It
// reaches all memory that a test has.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/compress/compressor.h"
#include "engine/compress/queue.h"
#include "tests/emulator/emulator.h"

namespace gradtune::suites {

compress::Queue& device_queue();

// Sets the emulator's schedule from now on; a GPU has its own.
using emulator::Schedule;
void use_schedule(Schedule schedule, uint64_t seed = 0);

// Waits until all requested work has ended. Throws core::Exception if it failed, or after a minute.
void finish(compress::Queue& queue);

// Does its work on the device, synchronously, for calls with a queue of the host: for tests that are written for the
// host's compressors.
std::unique_ptr<compress::Compressor> on_device(std::unique_ptr<compress::Compressor> device_compressor);

}  // namespace gradtune::suites
