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

  /// The own region; an empty one if there is none.
  Region Own() const { return own_ < 0 ? Region() : regions_[own_]; }
  /// How `encoder` encoded a region; without state.
  EncodeContext RegionContext(size_t region, int encoder, Encoding encoding) const;
  /// Of the own region, whose sum `sum` is; `owed_share` of what it loses counts as this rank's.
  /// Valid until the exchange ends.
  StatusOr<std::span<const std::byte>> EncodeSum(Group& group, std::span<const float> sum,
                                                 double owed_share);
  /// out += scale * what the payload of a region decodes to; out has the region's size.
  Status DecodeRegion(size_t region, int encoder, Encoding encoding,
                      std::span<const std::byte> payload, float scale, std::span<float> out) const;

  const std::vector<Region> regions_;
  const int own_;

 private:
  // The name of the form, which lives as long as the program.
  const std::string_view layout_ = FormOf(in_.collective).Traits().name;
  ScratchBuffer sum_payload_;
};

}  // namespace weir
