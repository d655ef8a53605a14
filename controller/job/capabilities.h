// SPDX-License-Identifier: Apache-2.0
#pragma once
// The codecs and collectives that the ranks of a job can run, as they declare them.

#include <cstdint>
#include <string>
#include <vector>

#include "controller/job/lease_ask.h"
#include "controller/model/snapshot.h"
#include "datapath/base/status.h"

namespace weir {

/// One setting of a codec, whatever the world size.
struct SettingOffer {
  CodecModel model;
  uint32_t world_min = 0, world_max = 0;  // 0: any
  std::vector<uint32_t> lane_levels;      // see CodecSetting in rank.proto
};

struct CodecOffer {
  std::string name, form;
  std::vector<std::string> forms;
  bool lossy = false, uses_ratio = false;
  double ratio_min = 1, ratio_max = 1;
  std::vector<SettingOffer> settings;
};

struct JobCapabilities {
  std::vector<CodecOffer> codecs;
  std::vector<CollectiveModel> collectives;

  bool IsLossless(const std::string& codec) const;
  std::vector<std::string> LosslessCodecs() const;
};

/// One model for each setting of each codec that `world` ranks can use.
std::vector<CodecModel> CodecsOf(const JobCapabilities& capabilities, int world);

/// Whether `world` ranks can run `choice`. kNotFound: unknown codec or collective (lists the valid
/// ones); kInvalidArgument: they do not fit each other, the world size or the ratio.
Status CheckChoice(const JobCapabilities& capabilities, const ChoiceModel& choice, int world);

/// The table of the lanes that `collective` carries where `choices` name it; empty: it needs none.
LeaseTable TableOf(const JobCapabilities& capabilities, const PlanModel& choices,
                   const std::string& collective, int world);

}  // namespace weir
