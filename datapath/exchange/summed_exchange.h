// SPDX-License-Identifier: Apache-2.0
#pragma once
// The common part of the forms that encode sums: regions of a bucket, each with its own states and
// seeds, and the sum of one region, which this rank encodes for the others.

#include "datapath/exchange/coded_exchange.h"
#include "datapath/exchange/regions.h"

namespace weir {

/// Each region has its own seeds and states, and they differ between the encoding of a rank's part
/// of a region and that of the region's sum, so that random rounding is independent everywhere. A
/// sum of finite values may overflow. The rank that encodes the sum detects that and announces it
/// with its payload.
class SummedExchange : public CodedExchange {
 protected:
  enum class Encoding { kPart, kSum };  // of a rank's part of a region, or of its sum

  /// own: the index in `regions` of the one whose sum this rank encodes; -1: none.
  SummedExchange(const ExchangeInput& input, ExchangeEnvironment& environment,
                 std::vector<Region> regions, int own)
      : CodedExchange(input, environment), regions_(std::move(regions)), own_(own) {}

  std::string_view StateLayout() const final { return layout_; }

  /// There are two parts: one makes the sum, the other distributes it. It is encoded in between.
  bool MorePayloads() const final { return part_ == kFirstRoundPart; }
  Status EncodeNext() final;
  Status MovePayloads(Group& group) final;

  /// This rank's region, or an empty one.
  Region Own() const { return own_ < 0 ? Region() : regions_[own_]; }
  /// The context with which `encoder` has encoded a region, without state.
  EncodeContext RegionContext(size_t region, int encoder, Encoding encoding) const;
  virtual Status MoveRound(Group& group, SumRound round) = 0;
  /// Called when the sum of this rank's region exists; calls EncodeSum where there is one.
  virtual Status EncodeOwn() = 0;
  /// Where the gradient is on a device: this rank's region as a bucket, made at the first use.
  StatusOr<DeviceBucket*> DeviceRegion();
  /// Encodes the sum of this rank's region and leaves the payload in sum_payload_. `owed_share` of
  /// the loss counts as this rank's.
  Status EncodeSum(std::span<const float> sum, double owed_share);
  /// out += scale * the decoded payload of a region; `out` has the region's size.
  Status DecodeRegion(size_t region, int encoder, Encoding encoding,
                      std::span<const std::byte> payload, float scale, std::span<float> out) const;

  const std::vector<Region> regions_;
  const int own_;
  std::span<const std::byte> sum_payload_;  // of the own region's sum

 private:
  StatusOr<EncodeResult> Encode(std::span<const float> sum, const EncodeContext& context,
                                std::span<std::byte> out);

  // The name of the form, which lives as long as the program.
  const std::string_view layout_ = FormOf(in_.collective).Traits().name;
  ScratchBuffer sum_buffer_;
  std::unique_ptr<DeviceBucket> device_region_;
};

}  // namespace weir
