// SPDX-License-Identifier: Apache-2.0
#include "datapath/session/aggregator_port.h"

#include <utility>

#include "datapath/aggregation/io/address.h"
#include "datapath/base/check.h"
#include "datapath/session/offload_mode.h"

namespace weir {
namespace {

// How long a lease may bring no packet before it is abandoned. All ranks have said that they are
// ready, so either the aggregator is silent or the system does not run some rank's thread. The
// latter passes, and an abandoned lease is lost until the controller grants another epoch. So this
// time is longer than such delays, and it is spent once for each epoch at most.
constexpr Duration kSilence = std::chrono::milliseconds(500);

}  // namespace

/// One lease, in any mode that adds lanes.
class AggregatorPort::LeasedOffload : public LaneOffload {
 public:
  LeasedOffload(AggregatorPort& owner, AggregatorLease lease)
      : owner_(owner), lease_(std::move(lease)) {
    error_ = Prepare();
  }

  const AggregatorLease& lease() const { return lease_; }

  bool abandoned() const override { return abandoned_; }

  StatusOr<uint32_t> Survey(std::span<const std::byte> lanes) override {
    if (mode_ == nullptr) return error_;
    StatusOr<uint32_t> found = mode_->Survey(lanes);
    error_ = found.status();
    return found;
  }

  StatusOr<uint64_t> Sum(std::span<const std::byte> lanes, uint32_t greatest,
                         TimePoint deadline) override {
    WEIR_CHECK(mode_ != nullptr);
    error_ = mode_->Begin(lanes, greatest, operation_++, deadline);
    if (error_.ok()) error_ = owner_.port_->Run(aggregator_, &mode_->worker());
    if (!error_.ok()) return error_;
    return mode_->bytes_sent();
  }

  bool partial() const override { return lease_.quorum > 0; }
  bool complete() const override { return mode_->complete(); }
  std::span<std::byte> result() override { return mode_->result(); }

  void Store(std::span<std::byte> lanes, LaneShares* shares) override {
    mode_->Store(lanes, shares);
  }

  void Abandon(int culprit) override {
    Close();
    if (culprit != owner_.options_.rank || !owner_.options_.failed) return;
    owner_.options_.failed(StrCat("aggregator '", lease_.aggregator, "' at ", lease_.address,
                                  " for ", lease_.collective, ": ", Message(error_)));
  }

  /// Stops using the lease and frees its memory.
  void Close() {
    abandoned_ = true;
    mode_ = nullptr;
  }

 private:
  Status Prepare() {
    if (owner_.port_ == nullptr) return owner_.missing_;
    WEIR_ASSIGN_OR_RETURN(const aggregation::Lease terms, TermsOf(lease_, owner_.options_.world));
    WEIR_ASSIGN_OR_RETURN(aggregator_, aggregation::ParseSourceAddress(lease_.address));
    WEIR_ASSIGN_OR_RETURN(mode_, MakeOffloadMode(terms, owner_.options_.rank));
    mode_->worker().EndWhenSilent(kSilence + terms.cutoff);
    return OkStatus();
  }

  AggregatorPort& owner_;
  const AggregatorLease lease_;
  aggregation::SourceAddress aggregator_ = 0;
  std::unique_ptr<OffloadMode> mode_;  // null: not ready, see error_, or abandoned
  bool abandoned_ = false;
  uint32_t operation_ = 0;  // equal on all ranks, because they make the same calls
  Status error_;            // of Prepare or the last try
};

AggregatorPort::AggregatorPort(Options options)
    : options_(std::move(options)),
      missing_(FailedPrecondition(
          StrCat("rank ", options_.rank, " has no port for packets of aggregators"))) {}

AggregatorPort::~AggregatorPort() = default;

void AggregatorPort::Bind(const TransportAddress& datapath) {
  aggregation::UdpPortOptions options;
  options.listen = datapath;
  auto bound = aggregation::WorkerPort::Bind(options);
  if (bound.status().code() == StatusCode::kUnavailable) {
    options.listen = datapath.substr(0, datapath.rfind(':')) + ":0";
    bound = aggregation::WorkerPort::Bind(options);
  }
  if (!bound.ok()) {
    missing_ = Annotate(bound.status(), Message(missing_));
    return;
  }
  port_ = std::move(*bound);
  address_ = aggregation::AddressText(port_->address());
}

AggregatorPort::LeasedOffload& AggregatorPort::Take(const AggregatorLease& lease) {
  std::unique_ptr<LeasedOffload>& offload = offloads_[lease.collective];
  if (offload == nullptr || offload->lease() != lease) {
    offload = nullptr;  // frees its memory before the next one allocates
    offload = std::make_unique<LeasedOffload>(*this, lease);
  }
  return *offload;
}

LaneOffload* AggregatorPort::OffloadOf(const Plan& plan, const std::string& collective) {
  const auto lease = plan.leases.find(collective);
  return lease == plan.leases.end() ? nullptr : &Take(lease->second);
}

void AggregatorPort::Disown(const Plan& plan) {
  for (const auto& [collective, lease] : plan.leases) Take(lease).Close();
}

}  // namespace weir
