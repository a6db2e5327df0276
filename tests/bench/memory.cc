// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// usage: bench_memory BUILD_FOLDER OUTPUT.json
//
// Counts gradtune's memory on one rank under a strategy, for the demo's model (8.55 M parameters) and one of 110 M
// (BERT base): gradient arenas, the pool (payloads, staging, scratch, received data), residuals and state. It is
// counted, not measured: everything is known once a strategy is compiled. The anchor is the gradient in fp32, which
// is the arena. Buckets have 25 MiB, or an eighth of a smaller model. There are rows for all memory on the host, and
// for gradients on a device with communicators of the host, in each space.
#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "engine/compress/compressor.h"
#include "engine/core/arenas.h"
#include "engine/exec/memory.h"
#include "engine/exec/program.h"
#include "tests/bench/support/results.h"
#include "tests/engine/exec/host_device.h"
#include "tuner/files/file_io.h"
#include "tuner/files/trace_file.h"

namespace gradtune::bench {
namespace {

constexpr int kInFlight = 2;
constexpr double kMegabyte = 1e6;
const std::vector<std::pair<std::string, std::string>> kPrograms = {
    {"all_reduce", "all_reduce"},
    {"reduce_scatter", "reduce_scatter all_gather"},
    {"none gather", "none: encode@device all_gather decode@device"},
    {"int8 gather", "int8: encode@device all_gather decode@device"},
    {"int8 two_step", "int8: encode@device all_to_all decode@device encode@device all_gather decode@device"},
    {"topk:0.01 gather", "topk:0.01: encode@device all_gather decode@device"}};

// As for c10d's communicator over Gloo: every rank's part, to be added up.
int64_t scratch_bytes(const comm::Collective& collective, int ranks) {
  if (collective.kind != comm::Collective::Kind::reduce_scatter) return 0;
  return collective.count * comm::bytes_per_element(collective.type) * ranks;
}

// Bytes in each space. The gradients are on `device`, unless that is null; communicators are the host's.
core::PerSpace<int64_t> allocated_bytes(core::GradientTable table, const std::string& option, int ranks,
                                        exec::Device* device) {
  const core::Space space = device == nullptr ? core::Space::host : core::Space::cuda;
  for (core::TensorInfo& tensor : table.tensors) tensor.space = space;
  const int64_t bucket = std::min<int64_t>(25 << 20, table.bytes() / 8);
  const core::Strategy strategy =
      core::uniform(core::cut(table, bucket, bucket, /*split=*/true),
                    core::parse_option(option, compress::known_traits()).value(), kInFlight);
  const auto scratch = [&](core::Level, const auto& what) { return scratch_bytes(what, ranks); };
  const auto compiled =
      exec::compile(strategy, table, {.rank = 0, .size = ranks}, {.scratch = scratch, .device = device});
  const exec::Program& program = *compiled.value();
  exec::Arenas arenas;
  for (const core::ArenaInfo& arena : core::lay_arenas(table).arenas) arenas.push_back({nullptr, arena.numel, space});
  core::PerSpace<int64_t> bytes = exec::Residuals().bytes_after(arenas, {.own = program.keeps_residual});
  bytes[space] += table.bytes();
  for (const core::Space each : core::kSpaces) bytes[each] += program.pool_bytes[each] + 2 * program.states_bytes[each];
  return bytes;
}

core::GradientTable table_of(const std::string& file) {
  const auto text = tuner::read_file(file, 1 << 20).value();
  return tuner::parse_trace(text).value().table;
}

// Model "vgg" of examples/train_fashion_mnist, in the order of backward.
core::GradientTable demo_table() {
  core::GradientTable table;
  for (const int64_t numel : {10'240, 10, 2'097'152, 1'024, 6'422'528, 2'048, 18'432, 64, 288, 32}) {
    table.tensors.push_back({.name = "t" + std::to_string(table.tensors.size()), .shape = {numel}, .numel = numel});
  }
  return table;
}

}  // namespace
}  // namespace gradtune::bench

int main(int argc, char** argv) {
  using namespace gradtune;
  using namespace gradtune::bench;
  if (argc != 3) {
    std::fprintf(stderr, "usage: bench_memory BUILD_FOLDER OUTPUT.json\n");
    return 2;
  }
  std::vector<Row> rows;
  const std::pair<std::string, core::GradientTable> models[] = {
      {"demo", demo_table()}, {"bert_base", table_of(GRADTUNE_TRACES "/bert_base.json")}};
  exec::HostDevice device;
  for (const auto& [model, table] : models) {
    const auto gradient = static_cast<double>(table.bytes());
    const auto add = [&](const std::string& name, int64_t counted) {
      const auto bytes = static_cast<double>(counted);
      rows.push_back({.name = name,
                      .value = bytes / kMegabyte,
                      .unit = "MB",
                      .anchor = gradient / kMegabyte,
                      .ratio = bytes / gradient,
                      .spread = {bytes / gradient, bytes / gradient}});
    };
    for (const auto& [name, option] : kPrograms) {
      for (const int ranks : {2, 8, 32}) {
        const std::string row = model + "/" + name + "/" + std::to_string(ranks) + " ranks";
        add(row, allocated_bytes(table, option, ranks, nullptr)[core::Space::host]);
        const core::PerSpace<int64_t> both = allocated_bytes(table, option, ranks, &device);
        add(row + ", on a device", both[core::Space::cuda]);
        add(row + ", pinned beside a device", both[core::Space::host]);
      }
    }
  }
  write_results(argc, argv, rows);
}
