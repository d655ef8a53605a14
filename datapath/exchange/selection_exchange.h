// SPDX-License-Identifier: Apache-2.0
#pragma once
// The common part of the forms whose payloads are only positions: the values there follow once the
// ranks have agreed on them.

#include "datapath/exchange/coded_exchange.h"

namespace weir {

/// The codec leaves gradient + residual in the `next` buffer of the residual. Setting it to zero at
/// the positions that are sent makes it the new residual, exactly.
class SelectionExchange : public CodedExchange {
 public:
  using CodedExchange::CodedExchange;

  static ExchangeMemory MemoryOf(const Codec& codec, uint64_t elements,
                                 const EncodeContext& context) {
    return MemoryOfCopies(codec, elements, context, 1);
  }

 protected:
  bool OwesWhatIsLeft() const override { return true; }
  Status EncodeFirst() override;
  Status MovePayloads(Group& group) final;
  Status Decode() override;

  virtual Status MoveSelection(Group& group) = 0;
  /// The positions of this rank that were sent and so leave its residual; a part of chosen().
  virtual const std::vector<uint32_t>& sent() const { return chosen_.indices; }

  std::span<const std::byte> selection() { return payload_.bytes().first(selection_bytes_); }
  size_t SelectionBytesMax() const { return codec().MaxEncodedBytes(gradient_.size(), context_); }
  double selection_energy() const { return selection_energy_; }
  /// This rank's values at those positions.
  std::vector<float> ValuesAt(std::span<const uint32_t> indices) const;

  SparseVector chosen_;  // in the end positions and sums, equal on all ranks

 private:
  size_t selection_bytes_ = 0;
  double selection_energy_ = 0;  // of this rank's own selection
};

}  // namespace weir
