// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/recording.h"

#include <utility>

namespace gradtune::sim {
namespace {

class Recording final : public comm::Communicator, private comm::CompletionSink {
 public:
  Recording(std::unique_ptr<comm::Communicator> inner, Call::Group group, const World& world, CallLog& log)
      : inner_(std::move(inner)), group_(group), world_(world), log_(log) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void abort() override { inner_->abort(); }

  void start(const comm::Collective& collective, comm::CompletionSink& sink, uint64_t token) override {
    log_.push_back({.call = {group_, collective.kind, collective.type, collective.count},
                    .under_way = ++under_way_,
                    .start_ns = world_.now_ns()});
    calls_.push_back({&log_.back(), &sink, token});
    inner_->start(collective, *this, calls_.size() - 1);
  }

 private:
  struct Told {
    RecordedCall* record;
    comm::CompletionSink* sink;
    uint64_t token;
  };

  void complete(uint64_t number, core::Status status, core::Fence) override {
    const Told& told = calls_[number];
    --under_way_;
    told.record->end_ns = world_.now_ns();
    told.record->failed = !status;
    while (first_open_ < calls_.size() && calls_[first_open_].record->end_ns >= 0) ++first_open_;
    told.record->overtook = first_open_ < number;
    told.sink->complete(told.token, std::move(status), {});
  }

  std::unique_ptr<comm::Communicator> inner_;
  const Call::Group group_;
  const World& world_;
  CallLog& log_;
  std::deque<Told> calls_;
  size_t first_open_ = 0;
  int under_way_ = 0;
};

}  // namespace

std::unique_ptr<comm::Communicator> record(std::unique_ptr<comm::Communicator> inner, Call::Group group,
                                           const World& world, CallLog& log) {
  return std::make_unique<Recording>(std::move(inner), group, world, log);
}

}  // namespace gradtune::sim
