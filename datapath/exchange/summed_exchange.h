#pragma once
// What the forms share whose sums are encoded: regions of a bucket, each with states and seeds of
// its own, and the sum of one of them that this rank encodes for others.

#include "datapath/exchange/coded_exchange.h"
#include "datapath/exchange/regions.h"

namespace weir {

/// Seeds and states are a region's own, and differ between the encoding of a rank's part of a
/// region and that of its sum, so that rounding at random is independent everywhere. NaN that
/// whoever encodes a sum meets first (a sum of finite values may overflow) is announced with its
/// payload.
class SummedExchange : public CodedExchange {
 protected:
  enum class Encoding { kPart, kSum };  // of what: a rank's part of a region, or its sum

  /// own: of `regions`, the one whose sum this rank encodes; -1: none.
  SummedExchange(const ExchangeInput& input, ExchangeEnvironment& environment,
                 std::vector<Region> regions, int own)
      : CodedExchange(input, environment), regions_(std::move(regions)), own_(own) {}

  std::string_view StateLayout() const final { return layout_; }

  /// Two parts: making the sum, and distributing what it was encoded to in between.
  bool MorePayloads() const final { return part_ == kFirstRoundPart; }
  Status EncodeNext() final;
  Status MovePayloads(Group& group) final;

  /// The own region; an empty one if there is none.
  Region Own() const { return own_ < 0 ? Region() : regions_[own_]; }
  /// How `encoder` encoded a region; without state.
  EncodeContext RegionContext(size_t region, int encoder, Encoding encoding) const;
  virtual Status MoveRound(Group& group, SumRound round) = 0;
  /// Once the sum of the own region is made: calls EncodeSum, if there is anything to encode.
  virtual Status EncodeOwn() = 0;
  /// Leaves the payload in sum_payload_; `owed_share` of what it loses counts as this rank's.
  Status EncodeSum(std::span<const float> sum, double owed_share);
  /// out += scale * what the payload of a region decodes to; out has the region's size.
  Status DecodeRegion(size_t region, int encoder, Encoding encoding,
                      std::span<const std::byte> payload, float scale, std::span<float> out) const;

  const std::vector<Region> regions_;
  const int own_;
  std::span<const std::byte> sum_payload_;  // of the own region's sum

 private:
  // The name of the form, which lives as long as the program.
  const std::string_view layout_ = FormOf(in_.collective).Traits().name;
  ScratchLoan sum_buffer_;
};

}  // namespace weir
