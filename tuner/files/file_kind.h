// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tells which kind of gradtune's files a text is, for errors about a file of the wrong kind. It leaves open if the
// file is valid.
#pragma once

#include <optional>
#include <string_view>

#include "engine/core/result.h"

namespace gradtune::tuner {

enum class FileKind { journal, trace, cost, strategy, checkpoint };

// Decides by the schema at its beginning, or for a published trace by its first key.
std::optional<FileKind> kind_of(std::string_view text);

// Explains why a text could not be read as that kind. If it is of another kind, empty or compressed, this says more
// than `error`.
core::Error read_as(FileKind needed, std::string_view text, core::Error error);

}  // namespace gradtune::tuner
