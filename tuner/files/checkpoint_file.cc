// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/files/checkpoint_file.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "engine/core/hash.h"
#include "tuner/files/file_kind.h"
#include "tuner/files/strict_json.h"

namespace gradtune::tuner {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kMostSteps = int64_t{1} << 48;
constexpr int kMostRanks = 1'000'000;
constexpr int64_t kMostSectionBytes = int64_t{1} << 48;
constexpr size_t kMostSections = 32, kMostNameBytes = 100, kMostHeaderBytes = 1 << 16;

core::Error corrupt(std::string message) { return {core::Error::Code::corrupt, std::move(message)}; }
core::Error mismatch(std::string message) { return {core::Error::Code::mismatch, std::move(message)}; }

// It covers the name, so that one section is not taken for another.
uint64_t checksum(std::string_view name, std::string_view bytes) {
  core::Hasher hasher;
  hasher.add(name);
  hasher.add(bytes);
  return hasher.value();
}

// Reads the common part of manifests and headers.
class Parser {
 public:
  core::Result<const JsonObject*> open(std::string_view text, std::initializer_list<std::string_view> members) {
    auto value = parse_json(text, {});
    if (!value) return read_as(FileKind::checkpoint, text, value.error());
    root_ = std::move(value).value();
    in.schema(root_, "schema", kCheckpointSchema);
    const JsonObject& object = in.object(root_, "file", members);
    if (!in.ok()) return read_as(FileKind::checkpoint, text, *in.error());
    return &object;
  }

  uint64_t hash(const JsonObject& object, std::string_view name) {
    return in.hash(JsonReader::member(object, name), name);
  }

  Manifest manifest(const JsonObject& object) {
    Manifest manifest;
    manifest.id = hash(object, "id");
    manifest.step = in.integer(JsonReader::member(object, "step"), "step", 0, kMostSteps);
    manifest.world_size =
        static_cast<int>(in.integer(JsonReader::member(object, "world_size"), "world_size", 1, kMostRanks));
    manifest.model = hash(object, "model");
    return manifest;
  }

  JsonReader in;

 private:
  JsonValue root_;
};

ordered_json json_of(const Manifest& manifest) {
  return {{"schema", kCheckpointSchema},
          {"id", hex(manifest.id)},
          {"step", manifest.step},
          {"world_size", manifest.world_size},
          {"model", hex(manifest.model)}};
}

// The first difference between a rank's file and that checkpoint.
core::Status same_checkpoint(const Manifest& found, int found_rank, const Manifest& manifest, int rank) {
  if (found.id != manifest.id || found.step != manifest.step || found.world_size != manifest.world_size) {
    return mismatch(fmt::format(
        "it belongs to another checkpoint ({} of step {} and {} ranks; {} names {} of step {} and {} ranks)",
        hex(found.id), found.step, found.world_size, kManifestName, hex(manifest.id), manifest.step,
        manifest.world_size));
  }
  if (found_rank != rank) return mismatch(fmt::format("it is that of rank {}, rank {}'s is needed", found_rank, rank));
  if (found.model != manifest.model) {
    return mismatch(fmt::format("it is for another model (fingerprint {}, {} says {})", hex(found.model), kManifestName,
                                hex(manifest.model)));
  }
  return {};
}

}  // namespace

std::string to_json(const Manifest& manifest) { return json_of(manifest).dump(2) + "\n"; }

core::Result<Manifest> parse_manifest(std::string_view text) {
  Parser parser;
  const auto object = parser.open(text, {"schema", "id", "step", "world_size", "model"});
  if (!object) return object.error();
  const Manifest manifest = parser.manifest(*object.value());
  if (!parser.in.ok()) return *parser.in.error();
  return manifest;
}

uint64_t checksum(const Sections& sections) {
  core::Hasher hasher;
  for (const auto& [name, bytes] : sections) hasher.add(checksum(name, bytes));
  return hasher.value();
}

std::string rank_header(const Manifest& manifest, int rank, const Sections& sections) {
  ordered_json header = json_of(manifest);
  header["rank"] = rank;
  header["sections"] = ordered_json::array();
  for (const auto& [name, bytes] : sections) {
    header["sections"].push_back({{"name", name}, {"bytes", bytes.size()}, {"checksum", hex(checksum(name, bytes))}});
  }
  return header.dump() + "\n";
}

core::Result<Sections> parse_rank_file(std::string_view text, const Manifest& manifest, int rank) {
  const size_t end = text.substr(0, kMostHeaderBytes).find('\n');
  if (end == text.npos) return corrupt("it is cut off: its first line, the header, does not end");
  Parser parser;
  const auto object =
      parser.open(text.substr(0, end), {"schema", "id", "step", "world_size", "model", "rank", "sections"});
  if (!object) return object.error();
  JsonReader& in = parser.in;
  const Manifest found = parser.manifest(*object.value());
  const auto found_rank =
      static_cast<int>(in.integer(JsonReader::member(*object.value(), "rank"), "rank", 0, kMostRanks - 1));
  if (!in.ok()) return *in.error();
  if (core::Status status = same_checkpoint(found, found_rank, manifest, rank); !status) return status.error();

  Sections sections;
  std::map<std::string, uint64_t> checksums;
  std::string_view rest = text.substr(end + 1);
  for (const JsonValue& entry : in.array(JsonReader::member(*object.value(), "sections"), "sections")) {
    const JsonObject& section = in.object(entry, "sections", {"name", "bytes", "checksum"});
    const std::string name = in.text(JsonReader::member(section, "name"), "sections.name", kMostNameBytes);
    const auto bytes =
        static_cast<size_t>(in.integer(JsonReader::member(section, "bytes"), "sections.bytes", 0, kMostSectionBytes));
    checksums[name] = parser.hash(section, "checksum");
    if (!in.ok()) return *in.error();
    if (bytes > rest.size()) {
      return corrupt(fmt::format("it is cut off: section \"{}\" has {} bytes, {} are left", name, bytes, rest.size()));
    }
    if (!sections.emplace(name, rest.substr(0, bytes)).second || sections.size() > kMostSections) {
      return corrupt(fmt::format("section \"{}\" stands there twice, or there are more than {}", name, kMostSections));
    }
    rest.remove_prefix(bytes);
  }
  if (!in.ok()) return *in.error();
  if (!rest.empty()) return corrupt(fmt::format("{} bytes follow after its last section", rest.size()));
  for (const auto& [name, bytes] : sections) {
    if (checksum(name, bytes) != checksums[name]) {
      return corrupt(fmt::format("section \"{}\" was changed: its checksum is another", name));
    }
  }
  return sections;
}

std::string rank_file_name(uint64_t id, int rank) { return fmt::format("{}.rank-{}", hex(id), rank); }

int rank_of_other_file(std::string_view name, uint64_t id) {
  constexpr size_t kTemporary = 7;  // characters that follow a file's name while it is written
  const size_t dot = name.find(".rank-");
  if (dot != 16) return -1;
  uint64_t found = 0;
  int rank = -1;
  const std::string_view digits = name.substr(dot + 6);
  std::from_chars(name.data(), name.data() + dot, found, 16);
  std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  const std::string whole = rank_file_name(found, rank);
  if (found == id || rank < 0 || !name.starts_with(whole)) return -1;
  const std::string_view rest = name.substr(whole.size());
  return rest.empty() || (rest[0] == '.' && rest.size() == kTemporary) ? rank : -1;
}

}  // namespace gradtune::tuner
