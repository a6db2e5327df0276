// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/files/file_kind.h"

#include <fmt/format.h>

#include <utility>

namespace gradtune::tuner {
namespace {

struct KindRow {
  FileKind kind;
  std::string_view schema, words;
};
constexpr KindRow kRows[] = {
    {FileKind::journal, "gradtune.journal/", "a journal, which \"gradtune report\", \"trace\" and \"cost\" take"},
    {FileKind::trace, "gradtune.trace/", "a trace, which \"gradtune replay\" takes"},
    {FileKind::cost, "gradtune.cost/", "a cost file, which \"gradtune replay --cost\" takes"},
    {FileKind::strategy, "gradtune.strategy/", "a strategy, which a job takes as option strategy"},
    {FileKind::checkpoint, "gradtune.checkpoint/", "a checkpoint, which load_checkpoint takes"},
};

std::string_view name_of(FileKind kind) {
  for (const KindRow& row : kRows) {
    if (row.kind == kind) return row.words.substr(0, row.words.find(','));
  }
  return "another file";
}

void skip_blanks(std::string_view& text) {
  const size_t at = text.find_first_not_of(" \t\r\n");
  text.remove_prefix(at == text.npos ? text.size() : at);
}

bool skip(std::string_view& text, std::string_view what) {
  skip_blanks(text);
  if (!text.starts_with(what)) return false;
  text.remove_prefix(what.size());
  return true;
}

}  // namespace

std::optional<FileKind> kind_of(std::string_view text) {
  if (!skip(text, "{")) return {};
  if (std::string_view rest = text; skip(rest, "\"model\"") || skip(rest, "\"tensors\"")) return FileKind::trace;
  if (!skip(text, "\"schema\"") || !skip(text, ":") || !skip(text, "\"")) return {};
  for (const KindRow& row : kRows) {
    if (text.starts_with(row.schema)) return row.kind;
  }
  return {};
}

core::Error read_as(FileKind needed, std::string_view text, core::Error error) {
  constexpr std::string_view kGzip = "\x1f\x8b";
  if (text.empty()) {
    return {error.code, fmt::format("the file is empty; {} is needed", name_of(needed))};
  }
  if (text.starts_with(kGzip)) {
    return {error.code, fmt::format("the file is compressed by gzip; {} is needed", name_of(needed))};
  }
  const auto kind = kind_of(text);
  if (!kind || *kind == needed) return error;
  for (const KindRow& row : kRows) {
    if (row.kind == *kind) {
      return {core::Error::Code::invalid, fmt::format("this is {}; {} is needed", row.words, name_of(needed))};
    }
  }
  return error;
}

}  // namespace gradtune::tuner
