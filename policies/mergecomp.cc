// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Policy `mergecomp` (after MergeComp, arXiv 2103.15195): chooses the number of buckets and their option from
// measured step times alone, in four phases:
// - screen: One program of each compressor on a standard partition, fewest bytes first. Then the other programs of
//   those compressors that came near the best.
// - place: The best of them on the host, if the job has threads for it.
// - walk: y = 1, 2, 3, 4, 6, ... buckets (nested partitions, partition.h) for the best one or two. It goes upwards
//   from the screened y and, if that does not pay, downwards, until the gain stays under a threshold twice in a row,
//   because step time is not unimodal in y.
// - done: The best different points go to the race.
//
// The measured step times are the only state. A phase is a function of them that gives the next point, or nothing
// when it is over. Points that follow whatever the results of those before them are requested together, because
// several at once take fewer steps than one after another. MergeComp's bisection of split positions is left out: it
// compares neighbours that differ by less than the noise, which costs up to 10 % (replay of MergeComp's traces).
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "policies/policy.h"
#include "policies/space/partition.h"
#include "policies/space/schemes.h"

namespace gradtune::policies {
namespace {

constexpr size_t kMostProbes = 16;
constexpr size_t kMostAtOnce = 3;
constexpr std::array kBuckets = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32};

// The start of screening: payloads near the gradient's size are cut into pieces of about 4 MiB, so that encoding,
// transfer and decoding overlap. Small payloads go into two buckets: the gradients that are ready early, and the
// rest.
constexpr int64_t kScreenedBytes = 4 << 20;
constexpr int kMostScreenedBuckets = 16;
constexpr int kFewBuckets = 2;

constexpr double kHopeless = 1.3;       // times the best: no other program of this compressor can make up for it
constexpr double kWorthWalking = 1.15;  // times the best screened one; the number of buckets can change about as much
constexpr size_t kMostWalks = 2;
constexpr double kWorthMore = 0.985;  // a step in y must gain 1.5 %, more than the noise of a measurement
constexpr int kMostMisses = 2;
constexpr double kWorthRacing = 1.10;  // times the best
constexpr size_t kMostPerForm = 2;
constexpr double kNotSlower = 1.03;  // times the baseline; slower ones are not worth a race

struct Point {
  size_t form, rung;
  auto operator<=>(const Point&) const = default;
};

int rounds(const core::Option& option) {
  int sum = 0;
  for (const core::Step& step : option.steps) sum += core::traits_of(step.kind).messages;
  return sum;
}

bool sums_payloads(const Scheme& form) {
  return !form.option.codecs.empty() &&
         std::any_of(form.option.steps.begin(), form.option.steps.end(),
                     [](const core::Step& step) { return core::traits_of(step.kind).adds_up; });
}

core::Option on_host(core::Option option) {
  for (core::Step& step : option.steps) {
    if (!core::is_collective(step.kind)) step.place = core::Place::host;
  }
  return option;
}

// True if `form` cannot win against `other`, a program of the same compressor, for one of these reasons:
// - The other sends no more, in no more rounds, with less work, and does not sum in 16 bits. Examples are all_reduce
//   against two_step of "none" and, on two ranks, gather against any two_step, since (N - 1) = 2 (N - 1) / N there.
// - A payload that is not small is sent more than twice as often: gather beyond four ranks sends N / 2 times the
//   ring's bytes.
bool outclassed(const Scheme& form, const Scheme& other) {
  if (form.codec != other.codec || form.place != other.place) return false;
  if (form.summable && form.sent > 2 * other.sent) return true;
  return other.sent <= form.sent && rounds(other.option) <= rounds(form.option) &&
         other.option.steps.size() < form.option.steps.size() && !sums_payloads(other);
}

class MergeComp final : public Policy {
 public:
  explicit MergeComp(const PolicyOptions& options) : most_finalists_(std::max(options.most_finalists, 0)) {}

  std::string_view name() const override { return "mergecomp"; }

  Proposal propose(const Knowledge& knowledge) override {
    if (!planned_) plan(knowledge);
    planned_ = true;
    // Candidates that could not run have no measurement.
    for (const auto& [hash, point] : asked_) step_ms_.try_emplace(point, std::numeric_limits<double>::infinity());
    asked_.clear();
    const std::vector<Point> points = next_points();
    if (points.empty()) return {finalists(knowledge), true};
    Proposal proposal;
    for (const Point& point : points) {
      proposal.candidates.push_back(candidate(point, knowledge));
      asked_[core::hash(proposal.candidates.back().strategy)] = point;
    }
    return proposal;
  }

  void learn(const core::Measurement& measurement) override {
    const auto asked = asked_.find(measurement.strategy_hash);
    if (asked != asked_.end()) step_ms_[asked->second] = measurement.step_ms;
  }

 private:
  // The search space: programs that could win, and partitions.
  void plan(const Knowledge& knowledge) {
    if (knowledge.ranks.size < 2) return;  // nothing to communicate
    const std::vector<Scheme> all = admitted_schemes(knowledge);
    std::set<uint64_t> different;  // for 16-bit gradients some forms equal the plain all_reduce
    for (const Scheme& form : all) {
      const auto beats = [&](const Scheme& other) { return outclassed(form, other); };
      if (std::any_of(all.begin(), all.end(), beats)) continue;
      const auto [at, is_new] = rungs_.try_emplace(form.end);
      if (is_new) at->second = rungs_of(knowledge.table, form.end);
      if (at->second.empty()) continue;
      const uint64_t hash = core::hash(apply(form, at->second[0], knowledge).strategy);
      if (!different.insert(hash).second) continue;
      forms_.push_back(form);
    }
    drop_useless_codecs();
    std::stable_sort(forms_.begin(), forms_.end(), [](const Scheme& a, const Scheme& b) { return a.sent < b.sent; });
    const int64_t pieces = knowledge.table.bytes() / kScreenedBytes;
    screened_buckets_ = static_cast<int>(std::clamp<int64_t>(pieces, kFewBuckets, kMostScreenedBuckets));
  }

  static std::vector<Partition> rungs_of(core::GradientTable table, size_t end) {
    table.tensors.resize(end);
    std::vector<Partition> rungs;
    for (Partition& partition : nested_partitions(table, kBuckets.back())) {
      const auto buckets = static_cast<int>(partition.size());
      if (rungs.empty() || std::find(kBuckets.begin(), kBuckets.end(), buckets) != kBuckets.end()) {
        rungs.push_back(std::move(partition));
      }
    }
    return rungs;
  }

  // A compressor is useless beside an earlier one that sends no more and is summable, hence as cheap as any.
  // Examples are fp16 beside bf16, 16 bits for gradients that have 16 bits already, and top-k of half the elements.
  void drop_useless_codecs() {
    std::map<size_t, double> least_sent;
    for (const Scheme& form : forms_) {
      const auto [at, is_new] = least_sent.try_emplace(form.codec, form.sent);
      if (!is_new) at->second = std::min(at->second, form.sent);
    }
    std::vector<Scheme> kept;
    for (const Scheme& form : forms_) {
      const auto beats = [&](const Scheme& other) {
        return other.summable && other.codec < form.codec && least_sent[other.codec] <= least_sent[form.codec];
      };
      if (std::none_of(forms_.begin(), forms_.end(), beats)) kept.push_back(form);
    }
    forms_ = std::move(kept);
  }

  const std::vector<Partition>& rungs(size_t form) const { return rungs_.at(forms_[form].end); }

  Point screened(size_t form) const {
    const int buckets = forms_[form].summable ? screened_buckets_ : kFewBuckets;
    size_t rung = 0;
    while (rung + 1 < rungs(form).size() && static_cast<int>(rungs(form)[rung + 1].size()) <= buckets) ++rung;
    return {form, rung};
  }
  bool is_known(const Point& point) const { return step_ms_.contains(point); }
  double step_ms(const Point& point) const {
    const auto at = step_ms_.find(point);
    return at == step_ms_.end() ? std::numeric_limits<double>::infinity() : at->second;
  }

  std::vector<Point> next_points() {
    std::vector<Point> points;
    while (points.size() < kMostAtOnce) {
      const std::optional<Point> point = next_point_whatever(points);
      if (!point) break;
      points.push_back(*point);
    }
    return points;
  }

  // The point that follows in every case if each of these turns out far slower or far faster than all others; none
  // if the next point depends on the results.
  std::optional<Point> next_point_whatever(const std::vector<Point>& unknown) {
    const std::map<Point, double> known = step_ms_;
    constexpr double kSlow = 1e12, kFast = 1e-12;
    std::optional<Point> next;
    for (unsigned slow = 0; slow < 1U << unknown.size(); ++slow) {
      double scale = 1;  // so that no two are equal
      for (size_t i = 0; i < unknown.size(); ++i, scale /= 2) {
        step_ms_[unknown[i]] = scale * ((slow >> i & 1) == 1 ? kSlow : kFast);
      }
      const std::optional<Point> point = next_point();
      if (slow == 0) next = point;
      if (point != next) next.reset();
    }
    step_ms_ = known;
    return next;
  }

  std::optional<Point> next_point() const {
    if (step_ms_.size() >= kMostProbes) return {};
    if (auto point = next_screened()) return point;
    if (auto point = next_placed()) return point;
    return next_walked();
  }

  std::optional<Point> next_screened() const {
    double best_ms = std::numeric_limits<double>::infinity();
    std::map<size_t, double> first_ms;  // of each compressor
    bool dense_is_hopeless = false;
    for (size_t f = 0; f < forms_.size(); ++f) {
      const Scheme& form = forms_[f];
      if (form.place == core::Place::host || first_ms.contains(form.codec)) continue;
      // Summable payloads are the cheapest to make. If one is far behind a form that sends less, bytes decide, and
      // forms that send still more are even slower.
      if (form.summable && dense_is_hopeless) continue;
      const Point point = screened(f);
      if (!is_known(point)) return point;
      if (!std::isfinite(step_ms(point))) continue;  // it could not run; another program of this compressor may
      first_ms[form.codec] = step_ms(point);
      if (form.summable && step_ms(point) > kHopeless * best_ms) dense_is_hopeless = true;
      best_ms = std::min(best_ms, step_ms(point));
    }
    for (size_t f = 0; f < forms_.size(); ++f) {
      const auto first = first_ms.find(forms_[f].codec);
      if (forms_[f].place == core::Place::host || first == first_ms.end() || first->second > kHopeless * best_ms)
        continue;
      if (!is_known(screened(f))) return screened(f);
    }
    return {};
  }

  // The screened forms, best first.
  std::vector<size_t> screened_forms() const {
    std::vector<size_t> forms;
    for (size_t f = 0; f < forms_.size(); ++f) {
      if (std::isfinite(step_ms(screened(f)))) forms.push_back(f);
    }
    std::stable_sort(forms.begin(), forms.end(),
                     [&](size_t a, size_t b) { return step_ms(screened(a)) < step_ms(screened(b)); });
    return forms;
  }

  // The best device forms, placed on the host.
  std::optional<Point> next_placed() const {
    const std::vector<size_t> forms = screened_forms();
    const auto best = std::find_if(forms.begin(), forms.end(),
                                   [&](size_t form) { return forms_[form].place == core::Place::device; });
    if (best == forms.end()) return {};
    const auto twin =
        std::find_if(forms_.begin(), forms_.end(), [option = on_host(forms_[*best].option)](const Scheme& form) {
          return form.place == core::Place::host && form.option == option;
        });
    if (twin == forms_.end()) return {};
    const Point point = screened(static_cast<size_t>(twin - forms_.begin()));
    return is_known(point) ? std::nullopt : std::optional(point);
  }

  std::optional<Point> next_walked() const {
    const std::vector<size_t> forms = screened_forms();
    std::optional<size_t> start;
    for (size_t i = 0; i < std::min(forms.size(), kMostWalks); ++i) {
      if (step_ms(screened(forms[i])) > kWorthWalking * step_ms(screened(forms[0]))) break;
      // The second walk starts where the first one ended.
      const size_t rung = start.value_or(screened(forms[i]).rung);
      const Walk walked = walk(forms[i], std::min(rung, rungs(forms[i]).size() - 1));
      if (walked.next) return walked.next;
      start = walked.best_rung;
    }
    return {};
  }

  struct Walk {
    std::optional<Point> next;
    size_t best_rung;
  };
  Walk walk(size_t form, size_t start) const {
    Walk walk{{}, start};
    if (!is_known({form, start})) return {Point{form, start}, start};
    for (const bool up : {true, false}) {
      size_t rung = start;
      for (int misses = 0; misses < kMostMisses;) {
        if (rung == (up ? rungs(form).size() - 1 : 0)) break;
        rung = up ? rung + 1 : rung - 1;
        const Point point{form, rung};
        if (!is_known(point)) return {point, walk.best_rung};
        const bool pays = step_ms(point) < kWorthMore * step_ms({form, walk.best_rung});
        if (pays) walk.best_rung = rung;
        misses = pays ? 0 : misses + 1;
      }
      if (walk.best_rung != start) break;  // more buckets paid, so fewer will not
    }
    return walk;
  }

  Candidate candidate(const Point& point, const Knowledge& knowledge) const {
    return apply(forms_[point.form], rungs(point.form)[point.rung], knowledge);
  }

  // The best one, the best of each other fidelity, so that the tuner may prefer the less lossy one of a tie, and
  // then the best of the rest. All are within reach of the best and not slower than the baseline.
  std::vector<Candidate> finalists(const Knowledge& knowledge) const {
    using Ranked = std::pair<double, Point>;
    std::vector<Ranked> ranked;
    for (const auto& [point, ms] : step_ms_) ranked.push_back({ms, point});
    std::sort(ranked.begin(), ranked.end());
    const auto reaches = [&](double ms) {
      return std::isfinite(ms) && ms <= kWorthRacing * ranked[0].first &&
             (knowledge.baseline_ms <= 0 || ms <= kNotSlower * knowledge.baseline_ms);
    };
    std::vector<Ranked> best_of_fidelity, rest;
    std::map<core::Fidelity, int> of_fidelity;
    std::map<size_t, size_t> of_form;
    for (const Ranked& entry : ranked) {
      const size_t form = entry.second.form;
      if (!reaches(entry.first) || ++of_form[form] > kMostPerForm) continue;
      (++of_fidelity[forms_[form].fidelity] == 1 ? best_of_fidelity : rest).push_back(entry);
    }
    std::vector<Ranked> chosen = std::move(best_of_fidelity);
    chosen.insert(chosen.end(), rest.begin(), rest.end());
    chosen.resize(std::min(chosen.size(), most_finalists_));
    std::sort(chosen.begin(), chosen.end());
    std::vector<Candidate> candidates;
    for (const Ranked& entry : chosen) candidates.push_back(candidate(entry.second, knowledge));
    return candidates;
  }

  const size_t most_finalists_;
  bool planned_ = false;
  std::vector<Scheme> forms_;                       // fewest bytes first
  std::map<size_t, std::vector<Partition>> rungs_;  // by Scheme::end, fewest buckets first
  int screened_buckets_ = kFewBuckets;

  std::map<uint64_t, Point> asked_;  // by hash of the strategy
  std::map<Point, double> step_ms_;  // of all requested points; infinity if one could not run
};

}  // namespace

std::unique_ptr<Policy> make_mergecomp(const PolicyOptions& options) { return std::make_unique<MergeComp>(options); }

}  // namespace gradtune::policies
