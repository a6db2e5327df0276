// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <system_error>
#include <utility>

#include "engine/compress/compressor.h"
#include "engine/core/hash.h"
#include "tuner/files/file_io.h"

namespace gradtune {
namespace {

namespace fs = std::filesystem;
using core::Error;

constexpr int64_t kMostManifestBytes = 1 << 16;

std::string path_of(const std::string& folder, std::string_view name) { return (fs::path(folder) / name).string(); }

Error in_file(const std::string& path, const Error& error) { return {error.code, path + ": " + error.message}; }

// A file that cannot be removed must not make the other ranks fail.
void remove_older_files(const std::string& folder, uint64_t id, int rank, int size) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const int of = tuner::rank_of_other_file(entry.path().filename().string(), id);
    if (of >= 0 && of % size == rank) fs::remove(entry.path(), ignored);
  }
}

core::Status write_rank_file(const std::string& folder, const std::string& path, const std::string& header,
                             const tuner::Sections& sections) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return Error{Error::Code::io, "can not make the folder " + folder + ": " + error.message()};
  std::vector<std::string_view> parts{header};
  for (const auto& [name, bytes] : sections) parts.push_back(bytes);
  return tuner::write_file_atomically(path, parts);
}

// The residuals of all arenas or of none; their number must be that of the model's elements.
core::Result<AllResiduals> residuals_of(const tuner::Sections& sections, const core::ArenaLayout& layout,
                                        std::string (*name)(const core::ArenaLayout&, size_t)) {
  AllResiduals all(layout.arenas.size());
  bool any = false, missing = false;
  for (size_t arena = 0; arena < all.size(); ++arena) {
    const int64_t needed = layout.arenas[arena].numel;
    const auto found = sections.find(name(layout, arena));
    if (needed == 0 && found == sections.end()) continue;
    (found == sections.end() ? missing : any) = true;
    if (found == sections.end()) continue;
    if (found->second.size() != static_cast<size_t>(needed) * sizeof(float)) {
      return Error{Error::Code::mismatch, "section \"" + found->first + "\" has " +
                                              std::to_string(found->second.size()) + " bytes, the model needs " +
                                              std::to_string(needed * 4)};
    }
    all[arena].resize(static_cast<size_t>(needed));
    std::memcpy(all[arena].data(), found->second.data(), found->second.size());
  }
  if (any && missing) return Error{Error::Code::corrupt, "residuals of some gradients are missing"};
  return all;
}

void add(const std::vector<float>& from, std::vector<float>& to) {
  to.resize(std::max(to.size(), from.size()));
  std::transform(from.begin(), from.end(), to.begin(), to.begin(), std::plus<>());
}

void take_contents(const tuner::SavedRank& rank, core::GradientTable& table) {
  for (const auto& [tensor, content] : rank.contents) {
    if (static_cast<size_t>(tensor) < table.tensors.size())
      table.tensors[static_cast<size_t>(tensor)].content = content;
  }
}

core::Result<SavedFile> parse(std::string_view text, const tuner::Manifest& manifest, int rank,
                              const core::GradientTable& table) {
  auto sections = tuner::parse_rank_file(text, manifest, rank);
  if (!sections) return sections.error();
  const auto section = [&](std::string_view name) {
    const auto found = sections.value().find(name);
    return found == sections.value().end() ? std::string_view() : found->second;
  };
  const core::TraitsTable known = compress::known_traits();
  SavedFile file;
  auto saved = tuner::parse_saved_rank(section(kRankSection), known);
  if (!saved) return Error{saved.error().code, "section \"rank\": " + saved.error().message};
  file.rank = std::move(saved).value();
  if (file.rank.step != manifest.step) {
    return Error{Error::Code::mismatch, "it says step " + std::to_string(file.rank.step) + " inside"};
  }
  for (const auto& [slot, strategy] : file.rank.strategies) {
    auto ordered = tuner::fit(strategy, table, manifest.world_size, strategy.fidelity, known);
    if (!ordered)
      return Error{ordered.error().code, "strategy of slot " + std::to_string(slot) + ": " + ordered.error().message};
    file.table = std::move(ordered).value();  // the same for all slots
  }
  take_contents(file.rank, file.table);
  const core::ArenaLayout layout = core::lay_arenas(file.table);
  auto residuals = residuals_of(sections.value(), layout, residuals_section);
  if (!residuals) return residuals.error();
  file.residuals = std::move(residuals).value();
  auto parked = residuals_of(sections.value(), layout, parked_section);
  if (!parked) return parked.error();
  file.parked = std::move(parked).value();
  file.rank.holders.resize(std::max(file.rank.holders.size(), layout.arenas.size()));
  for (size_t arena = 0; arena < file.rank.holders.size(); ++arena) {
    const auto& holders = file.rank.holders[arena];
    const int64_t elements = arena < layout.arenas.size() ? layout.arenas[arena].numel : 0;
    if (holders.empty() || holders.back().end <= elements) continue;
    return Error{Error::Code::mismatch, "section \"rank\": holders of more elements than the model has"};
  }
  file.rank.holders.resize(layout.arenas.size());
  file.state = section(kStateSection);
  if (rank > 0 || !file.rank.order_learned) return file;
  auto tuner = tuner::parse_saved_tuner(section(kTunerSection), known);
  if (!tuner) return Error{tuner.error().code, "section \"tuner\": " + tuner.error().message};
  auto told = tuner::parse_replay_log(section(kHistorySection));
  if (!told) return Error{told.error().code, "section \"history\": " + told.error().message};
  file.tuner = std::move(tuner).value();
  file.told = std::move(told).value();
  return file;
}

}  // namespace

std::string residuals_section(const core::ArenaLayout& layout, size_t arena) {
  return "residuals " + core::name_of(layout, arena);
}

std::string parked_section(const core::ArenaLayout& layout, size_t arena) {
  return "parked " + core::name_of(layout, arena);
}

uint64_t checkpoint_fingerprint(const core::GradientTable& table) {
  std::map<std::string_view, const std::vector<int32_t>*> orders;  // does not depend on the order of the table
  for (const core::TensorInfo& tensor : table.tensors) {
    if (!tensor.is_row_major()) orders[tensor.name] = &tensor.memory_order;
  }
  if (orders.empty()) return table.fingerprint();
  core::Hasher hasher;
  hasher.add(table.fingerprint());
  for (const auto& [name, order] : orders) {
    hasher.add(name);
    for (const int32_t dimension : *order) hasher.add(static_cast<uint64_t>(dimension));
  }
  return hasher.value();
}

void write_checkpoint(Peers& peers, const std::string& folder, int64_t step, uint64_t model,
                      const tuner::Sections& sections) {
  core::Hasher all;
  for (const uint64_t sum : peers.gather(tuner::checksum(sections))) all.add(sum);
  all.add(static_cast<uint64_t>(step));
  const tuner::Manifest manifest{.id = all.value(), .step = step, .world_size = peers.size(), .model = model};
  const std::string path = path_of(folder, tuner::rank_file_name(manifest.id, peers.rank()));
  std::error_code ignored;
  const bool is_new = !fs::exists(path, ignored);
  const core::Status written =
      write_rank_file(folder, path, tuner::rank_header(manifest, peers.rank(), sections), sections);
  try {
    peers.must_succeed("write the checkpoint", written);
  } catch (const core::Exception& error) {
    // All ranks know that the checkpoint failed, so no rank will name this file.
    const bool is_told = error.code() != Error::Code::lost && error.code() != Error::Code::timeout;
    if (is_new && is_told) fs::remove(path, ignored);
    throw;
  }
  core::Status named;
  if (peers.rank() == 0) {
    named = tuner::write_file_atomically(path_of(folder, tuner::kManifestName), tuner::to_json(manifest));
  }
  peers.must_succeed("put the checkpoint in place", named);
  remove_older_files(folder, manifest.id, peers.rank(), peers.size());
}

tuner::Manifest find_checkpoint(Peers& peers, const std::string& folder, uint64_t model) {
  const std::string path = path_of(folder, tuner::kManifestName);
  const std::string text = peers.broadcast_file(path, kMostManifestBytes, "load_checkpoint");
  auto manifest = tuner::parse_manifest(text);
  if (manifest && manifest.value().model != model) {
    manifest = Error{Error::Code::mismatch, "it is for another model: names, shapes, dtypes or memory formats differ"};
  }
  if (manifest) return manifest.value();
  throw core::Exception({manifest.error().code, "gradtune: checkpoint " + path + ": " + manifest.error().message});
}

core::Result<SavedFile> read_rank_file(const std::string& folder, const tuner::Manifest& manifest, int rank,
                                       const core::GradientTable& table) {
  const std::string path = path_of(folder, tuner::rank_file_name(manifest.id, rank));
  // Room for the residuals and several times as much for codec state, history and strategies.
  const int64_t most_bytes = (int64_t{1} << 30) + 32 * table.numel();
  const auto text = tuner::read_file(path, most_bytes);
  if (!text) return text.error();
  auto file = parse(text.value(), manifest, rank, table);
  if (!file) return in_file(path, file.error());
  return file;
}

SavedFile read_resized(Peers& peers, const std::string& folder, const tuner::Manifest& manifest,
                       const core::GradientTable& table) {
  SavedFile mine;
  core::Status status;
  std::vector<uint8_t> any = {0};
  for (int rank = peers.rank(); rank < manifest.world_size && status; rank += peers.size()) {
    auto read = read_rank_file(folder, manifest, rank, table);
    if (!read) {
      status = Error{read.error().code, read.error().message + " (a job of " + std::to_string(peers.size()) +
                                            " ranks needs the files of all " + std::to_string(manifest.world_size) +
                                            " in one folder)"};
      break;
    }
    if (mine.table.tensors.empty()) mine.table = read.value().table;
    if (mine.table != read.value().table) {
      status = Error{Error::Code::mismatch, "its files hold gradients in different orders"};
      break;
    }
    for (const AllResiduals* other : {&read.value().residuals, &read.value().parked}) {
      mine.residuals.resize(other->size());
      for (size_t arena = 0; arena < other->size(); ++arena) {
        any[0] = any[0] != 0 || !(*other)[arena].empty() ? 1 : 0;
        add((*other)[arena], mine.residuals[arena]);
      }
    }
    if (rank == 0) mine.rank = std::move(read.value().rank);
  }
  peers.must_succeed("read the checkpoint", status);
  // The part of the old rank 0's file that is the same on all ranks.
  const std::string text = peers.broadcast_text(peers.rank() == 0 ? tuner::to_json(mine.rank) : "");
  const core::TraitsTable known = compress::known_traits();
  mine.rank = tuner::parse_saved_rank(text, known).value();
  const tuner::StrategyFile& in_force = mine.rank.in_force();
  core::GradientTable ordered = tuner::fit(in_force, table, manifest.world_size, in_force.fidelity, known).value();
  take_contents(mine.rank, ordered);
  status = {};
  if (any[0] != 0 && mine.table != ordered) {
    status = Error{Error::Code::mismatch, "its files hold gradients in different orders"};
  }
  peers.must_succeed("read the checkpoint", status);
  mine.table = ordered;
  peers.max(any);
  if (any[0] == 0) return mine;
  const core::ArenaLayout layout = core::lay_arenas(mine.table);
  mine.residuals.resize(layout.arenas.size());
  for (size_t arena = 0; arena < layout.arenas.size(); ++arena) {
    std::vector<float>& residuals = mine.residuals[arena];
    residuals.resize(static_cast<size_t>(layout.arenas[arena].numel));
    if (residuals.empty()) continue;
    peers.sum(residuals);
    for (float& value : residuals) value /= static_cast<float>(manifest.world_size);
  }
  return mine;
}

}  // namespace gradtune
