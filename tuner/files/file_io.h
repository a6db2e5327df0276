// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Reads and writes small files as text, with errors that name the file. It leaves open what they contain.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/result.h"

namespace gradtune::tuner {

// Returns the whole file; an error if it has more than `most_bytes`.
core::Result<std::string> read_file(const std::string& path, int64_t most_bytes);

// Writes a temporary file beside it, then fsync, rename, fsync of the folder: readers see the old or the new file,
// never a third. A link stays a link, and its target is written. A file that is not regular (a pipe, a terminal, a
// device) is written directly.
core::Status write_file_atomically(const std::string& path, std::string_view text);
// The same for a file that is joined from parts.
core::Status write_file_atomically(const std::string& path, const std::vector<std::string_view>& parts);

}  // namespace gradtune::tuner
