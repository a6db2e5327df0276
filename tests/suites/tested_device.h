// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The device that tests of kernels are about: the emulator (tests/emulator), or a GPU (tests/gpu), by what is linked.
// It reaches all memory that a test has.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/compress/compressor.h"
#include "engine/compress/queue.h"
#include "tests/emulator/emulator.h"

namespace gradtune::suites {

compress::Queue& device_queue();

// Of the emulator, from now on; a GPU has its own.
using emulator::Schedule;
void use_schedule(Schedule schedule, uint64_t seed = 0);

// Until all that was asked for has ended. Throws core::Exception where it failed, or after a minute.
void finish(compress::Queue& queue);

// Does on the device what it is asked to do on a queue of the host, and has done it when it returns: for tests that are
// written for the host's compressors.
std::unique_ptr<compress::Compressor> on_device(std::unique_ptr<compress::Compressor> device_compressor);

}  // namespace gradtune::suites
