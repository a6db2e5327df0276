// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Random jobs of 2 to 4 ranks, real processes with Gloo between them. Jobs without a mistake must train like plain
// data-parallel training. If one rank makes a mistake, every rank must end with an error at once.
//
// Environment variables:
// - FUZZ_JOBS=300: the number of jobs, a quarter of them with a mistake
// - FUZZ_SEED=17: this job alone
// - FUZZ_FIRST=1000: the seed of the first one
// - FUZZ_WITH=a: only jobs with this feature
// - FUZZ_LATER_S=2: seconds that ranks may end after the first error; use more on a busy machine
// - FUZZ_WITHOUT=a,b: without these features (features.cc)
#include <gmock/gmock.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <sstream>

#include "tests/hooks/fuzz/job_runner.h"
#include "tests/hooks/jobs.h"
#include "tests/hooks/ranks.h"
#include "tests/temp_folder.h"

namespace gradtune::test {
namespace {

constexpr int kBatch = 12;             // jobs of one start of processes
constexpr double kMistakeLimitS = 30;  // for a job with a mistake, from the start of its processes

uint64_t number(const char* variable, uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// Most seconds between the first rank's error and the end of any rank. The others wait 5 seconds for the process that
// failed first, if it does not end (Peers::close).
double most_later_s(const JobPlan& plan) {
  const bool goes_on = plan.fault->keeps_going(plan.fault->rank);
  return kSlowness * (static_cast<double>(number("FUZZ_LATER_S", 2)) + (goes_on ? 5 : 0));
}

std::vector<JobPlan> drawn_jobs(bool with_fault) {
  const Features features = Features::from_environment();
  const uint64_t only = number("FUZZ_SEED", 0);
  const uint64_t first = only > 0 ? only : number("FUZZ_FIRST", 1);
  const uint64_t count = only > 0 ? 1 : number("FUZZ_JOBS", 8);
  const char* const wanted = std::getenv("FUZZ_WITH");
  std::vector<JobPlan> plans;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    JobPlan plan = draw_job(seed, features);
    const bool is_wanted = wanted == nullptr || plan.features.contains(wanted);
    if (plan.fault.has_value() == with_fault && is_wanted) plans.push_back(std::move(plan));
  }
  return plans;
}

template <class... Values>
void say(const char* format, Values... values) {
  std::printf(format, values...);
  std::printf("\n");
  std::fflush(stdout);
}

// --- jobs without a mistake ------------------------------------------------------------------------------------------

// Another job takes its steps between those of the first one, until it has no more.
void run_together(JobRunner& job, const JobPlan& other, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                  const std::string& folder) {
  std::filesystem::create_directories(folder);
  JobRunner companion(other, group, folder);
  job.begin();
  companion.begin();
  for (int step = 0; step < job.steps(); ++step) {
    job.train(step);
    if (step < companion.steps()) companion.train(step);
  }
}

// The work of a copy.
void run_batch(const Rank&) {
  auto group = make_group();
  std::istringstream seeds(std::getenv("FUZZ_BATCH"));
  for (std::string seed; std::getline(seeds, seed, ',');) {
    const Features features = Features::from_environment();
    const JobPlan plan = draw_job(std::stoull(seed), features);
    const std::string folder = TempFolder().path();
    JobRunner job(plan, group, folder);
    try {
      if (plan.companion) {
        run_together(job, draw_companion(plan, features), group, folder + "/companion");
      } else {
        job.run();
      }
    } catch (const Diverged&) {
    } catch (const std::exception& error) {
      const std::string what = error.what();
      say("job %s wrong: %s", seed.c_str(), what.substr(0, what.find("\nframe #")).c_str());
      std::fflush(stdout);
      std::_Exit(1);  // the others learn it by their connections
    }
    say("job %s done, %ld switches", seed.c_str(), static_cast<long>(job.switches()));
  }
}

int64_t switches_in(const std::string& output) {
  int64_t sum = 0;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find(" done, ");
    if (at != std::string::npos) sum += std::atoll(line.c_str() + at + 7);
  }
  return sum;
}

std::string end_of(const std::string& output) {
  constexpr size_t kMost = 3000;
  return output.substr(output.size() > kMost ? output.size() - kMost : 0);
}

// Starts the jobs, which have the same number of ranks. If one is wrong, those behind it are started again without
// it.
void run_jobs(const std::vector<JobPlan>& plans, int64_t& switches) {
  for (size_t first = 0; first < plans.size();) {
    const size_t count = std::min<size_t>(kBatch, plans.size() - first);
    std::string seeds;
    for (size_t job = first; job < first + count; ++job) seeds += std::to_string(plans[job].seed) + ",";
    const auto ends =
        start_ranks(plans[first].ranks, run_batch,
                    {.time_limit_s = 60 + 60.0 * static_cast<double>(count), .environment = {{"FUZZ_BATCH", seeds}}});
    size_t done = 0;
    const auto is_done = [&](const RankEnd& end) {
      return end.output.find("job " + std::to_string(plans[first + done].seed) + " done") != std::string::npos;
    };
    while (done < count && std::ranges::all_of(ends, is_done)) ++done;
    switches += switches_in(ends[0].output);
    first += done;
    std::string outputs;
    bool ended_well = true;
    for (size_t rank = 0; rank < ends.size(); ++rank) {
      ended_well = ended_well && ends[rank].in_time && ends[rank].exit_code == 0;
      outputs += "rank " + std::to_string(rank) + " exit code " + std::to_string(ends[rank].exit_code) + ":\n" +
                 end_of(ends[rank].output) + "\n";
    }
    if (done < count) {
      ADD_FAILURE() << to_text(plans[first]) << "\n" << outputs;
      ++first;
    } else if (!ended_well) {
      ADD_FAILURE() << "all jobs were done, but not all processes ended well: " << seeds << "\n" << outputs;
    }
  }
}

TEST(JobFuzz, TrainsAsPlainTrainingDoes) {
  std::map<int, std::vector<JobPlan>> by_ranks;
  for (JobPlan& plan : drawn_jobs(/*with_fault=*/false)) by_ranks[plan.ranks].push_back(std::move(plan));
  int64_t switches = 0;
  for (const auto& [ranks, plans] : by_ranks) run_jobs(plans, switches);
  say("strategies were switched %ld times", static_cast<long>(switches));
}

// --- jobs with a mistake ---------------------------------------------------------------------------------------------

// The work of a copy. An error is printed when it is caught; then the stack unwinds as in a user's program.
void run_mistake(const Rank&) {
  const JobPlan plan = draw_job(number("FUZZ_MISTAKE", 0), Features::from_environment());
  auto group = make_group();
  JobRunner job(plan, group, TempFolder().path());
  try {
    job.run();
    say("no error");
  } catch (const std::runtime_error& error) {
    say("error at %.3f: %s", now_s(), error.what());
  } catch (const std::exception& error) {
    say("an error that is no std::runtime_error at %.3f: %s", now_s(), error.what());
  }
}

// Returns the time between the first error and the end of the last rank.
double check_mistake(const JobPlan& plan) {
  const double start_s = now_s();
  const auto ends =
      start_ranks(plan.ranks, run_mistake,
                  {.time_limit_s = kMistakeLimitS, .environment = {{"FUZZ_MISTAKE", std::to_string(plan.seed)}}});
  double first_s = 1e300, last_s = 0;
  std::string wrong, outputs;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    const RankEnd& end = ends[static_cast<size_t>(rank)];
    const bool errs =
        rank != plan.fault->rank || (plan.fault->name != "fault_leave" && plan.fault->name != "fault_exit");
    const std::string who = "rank " + std::to_string(rank);
    const size_t at = end.output.find("error at ");
    if (at != std::string::npos) first_s = std::min(first_s, std::atof(end.output.c_str() + at + 9));
    if (!plan.fault->keeps_going(rank)) last_s = std::max(last_s, start_s + end.seconds);
    if (!end.in_time) {
      wrong += who + " did not end; ";
    } else if (errs && at == std::string::npos) {
      wrong += who + " ended without an error that is a std::runtime_error; ";
    } else if (errs && end.exit_code != 0) {
      wrong += who + " ended with exit code " + std::to_string(end.exit_code) + "; ";
    }
    outputs += who + ", ended at " + std::to_string(start_s + end.seconds) + ":\n" + end_of(end.output) + "\n";
  }
  if (wrong.empty()) {
    say("job %ld, %s: the last rank ended %.2f s after the first error", static_cast<long>(plan.seed),
        plan.fault->name.c_str(), last_s - first_s);
  }
  EXPECT_EQ(wrong, "") << to_text(plan) << "\n" << outputs;
  return wrong.empty() ? last_s - first_s : 0;
}

TEST(JobFuzz, AMistakeOfOneRankEndsAllRanks) {
  if (is_rank()) start_ranks(0, run_mistake);
  for (const JobPlan& plan : drawn_jobs(/*with_fault=*/true)) {
    // A machine that stalls is late now and then; a fault is late each time.
    double later_s = check_mistake(plan);
    for (int again = 0; again < 2 && later_s > most_later_s(plan); ++again)
      later_s = std::min(later_s, check_mistake(plan));
    EXPECT_LE(later_s, most_later_s(plan)) << to_text(plan);
  }
}

}  // namespace
}  // namespace gradtune::test
