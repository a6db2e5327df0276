// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Small files as text, with errors that name the file. Leaves open what stands in them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/result.h"

namespace gradtune::tuner {

// The whole file; an error when it has more than `most_bytes`.
core::Result<std::string> read_file(const std::string& path, int64_t most_bytes);

// Writes to a temporary file beside it, fsync, rename, fsync of the folder: old or new, never a third. A link stays
// one, and what it names is written. What is no regular file (a pipe, a terminal, a device) is written through.
core::Status write_file_atomically(const std::string& path, std::string_view text);
// The same of a file that is put together from parts.
core::Status write_file_atomically(const std::string& path, const std::vector<std::string_view>& parts);

}  // namespace gradtune::tuner
