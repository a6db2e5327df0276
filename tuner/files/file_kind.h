// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Which kind of gradtune's files a text is, for errors about a file of another kind than the one that is needed. Leaves
// open whether it is a good one.
#pragma once

#include <optional>
#include <string_view>

#include "engine/core/result.h"

namespace gradtune::tuner {

enum class FileKind { journal, trace, cost, strategy, checkpoint };

// By the schema at its beginning, or, of a published trace, by its first key.
std::optional<FileKind> kind_of(std::string_view text);

// Why a text that was read as that kind is none: where it is of another kind, this says more than `error`.
core::Error read_as(FileKind needed, std::string_view text, core::Error error);

}  // namespace gradtune::tuner
