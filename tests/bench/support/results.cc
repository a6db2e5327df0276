// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/support/results.h"

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

namespace gradtune::bench {
namespace {

using nlohmann::ordered_json;

double significant(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return std::strtod(text, nullptr);
}

ordered_json significant(const std::optional<double>& value) {
  return value ? ordered_json(significant(*value)) : ordered_json();
}

ordered_json json_of(const Row& row) {
  ordered_json json{{"name", row.name},
                    {"value", significant(row.value)},
                    {"unit", row.unit},
                    {"anchor", significant(row.anchor)},
                    {"ratio", significant(row.ratio)},
                    {"spread", {significant(row.spread[0]), significant(row.spread[1])}},
                    {"goal", significant(row.goal)},
                    {"met", row.met ? ordered_json(*row.met) : ordered_json()}};
  if (row.ms) json["ms"] = significant(*row.ms);
  return json;
}

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

std::string today() {
  char date[16];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%F", std::gmtime(&now));
  return date;
}

}  // namespace

void write_results(int argc, char** argv, const std::vector<Row>& rows) {
  std::string command = std::filesystem::path(argv[0]).filename().string();
  for (int i = 1; i + 2 < argc; ++i) command += std::string(" ") + argv[i];
  const ordered_json run{{"date", today()},
                         {"cores", std::thread::hardware_concurrency()},
                         {"processor", processor()},
                         {"command", command}};
  std::ofstream out(argv[argc - 1]);
  out << "{\"schema\":\"gradtune.benchmark/1\",\n\"run\":" << run.dump() << ",\n\"rows\":[";
  for (size_t i = 0; i < rows.size(); ++i) out << (i == 0 ? "\n" : ",\n") << json_of(rows[i]).dump();
  out << "\n]}\n";
}

int run_benchmark(int argc, char** argv, int (*benchmark)(int argc, char** argv)) {
  try {
    return benchmark(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace gradtune::bench
