// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The files of a checkpoint (schema "gradtune.checkpoint/5"). A folder holds one checkpoint: a file for each rank,
// and `checkpoint.json`, which names them. A rank's file is a line of JSON, then its sections one after the other as
// bytes (little-endian). The line gives their lengths and checksums, and every byte is covered. There is no pickle,
// and nothing is executed.
//
// The id is a hash of everything that all ranks saved; it is part of each file and of its name. So the earlier
// checkpoint stays whole until `checkpoint.json`, which is written last, names the new files. It also reveals files
// that do not belong together. It leaves open what the sections hold, and who writes and reads when.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "engine/core/result.h"

namespace gradtune::tuner {

constexpr std::string_view kCheckpointSchema = "gradtune.checkpoint/5";
constexpr std::string_view kManifestName = "checkpoint.json";

// The data that all files of a checkpoint share.
struct Manifest {
  uint64_t id = 0;
  int64_t step = 0;  // steps done
  int world_size = 1;
  uint64_t model = 0;  // fingerprint of the gradient table

  bool operator==(const Manifest&) const = default;
};
std::string to_json(const Manifest& manifest);
core::Result<Manifest> parse_manifest(std::string_view text);

// By name; files hold them in the order of names.
using Sections = std::map<std::string, std::string_view, std::less<>>;

uint64_t checksum(const Sections& sections);

// The file of a rank without its sections, which follow it.
std::string rank_header(const Manifest& manifest, int rank, const Sections& sections);

// The sections of that rank's file, as parts of `text`. Errors name the fault: another schema, a file of another
// checkpoint, rank or model, a truncated file, or the section with changed bytes.
core::Result<Sections> parse_rank_file(std::string_view text, const Manifest& manifest, int rank);

std::string rank_file_name(uint64_t id, int rank);
// The rank whose file that is, in a checkpoint other than `id`, complete or left by a crash; -1 for any other name.
int rank_of_other_file(std::string_view name, uint64_t id);

}  // namespace gradtune::tuner
