// SPDX-License-Identifier: Apache-2.0
#include "controller/job/capabilities.h"

#include <algorithm>
#include <set>

#include "controller/job/bounds.h"
#include "datapath/base/registry.h"

namespace weir {
namespace {

bool Allows(const SettingOffer& setting, int world) {
  const auto ranks = static_cast<uint32_t>(world);
  return ranks >= setting.world_min && (setting.world_max == 0 || ranks <= setting.world_max);
}

/// One model for each setting that the world size allows.
std::vector<CodecModel> ModelsOf(const CodecOffer& codec, int world) {
  std::vector<CodecModel> out;
  for (const SettingOffer& setting : codec.settings) {
    if (!Allows(setting, world)) continue;
    const bool known = std::any_of(out.begin(), out.end(), [&](const auto& other) {
      return other.bits == setting.model.bits;
    });
    if (known) continue;  // a second one could never be asked for
    out.push_back(setting.model);
    // A job has one lease of a table, so one table.
    out.back().tabled = out.size() == 1 && !setting.lane_levels.empty();
  }
  return out;
}

Status CheckSetting(const CodecOffer& codec, const ChoiceModel& choice, int world) {
  if (codec.uses_ratio && (choice.ratio < codec.ratio_min || choice.ratio > codec.ratio_max)) {
    return InvalidArgument(StrCat("ratio ", choice.ratio, " of ", choice.codec, ", expected ",
                                  codec.ratio_min, " to ", codec.ratio_max));
  }
  const std::vector<CodecModel> models = ModelsOf(codec, world);
  if (FindCodec(models, choice.codec, choice.bits) != nullptr) return OkStatus();
  std::string settings;
  for (const SettingOffer& setting : codec.settings) {
    settings += StrCat(
        settings.empty() ? "" : ", ", setting.model.bits, " on ", setting.world_min, " to ",
        setting.world_max == 0 ? static_cast<uint32_t>(kWorldMax) : setting.world_max, " ranks");
  }
  return InvalidArgument(StrCat(choice.codec, " with bits ", choice.bits, " on ", world,
                                " ranks; allowed: ", settings));
}

}  // namespace

bool JobCapabilities::IsLossless(const std::string& codec) const {
  return std::any_of(codecs.begin(), codecs.end(),
                     [&](const CodecOffer& known) { return known.name == codec && !known.lossy; });
}

std::vector<std::string> JobCapabilities::LosslessCodecs() const {
  std::vector<std::string> names;
  for (const CodecOffer& codec : codecs) {
    if (!codec.lossy) names.push_back(codec.name);
  }
  return names;
}

std::vector<CodecModel> CodecsOf(const JobCapabilities& capabilities, int world) {
  std::vector<CodecModel> out;
  for (const CodecOffer& codec : capabilities.codecs) {
    for (CodecModel& model : ModelsOf(codec, world)) out.push_back(std::move(model));
  }
  return out;
}

Status CheckChoice(const JobCapabilities& capabilities, const ChoiceModel& choice, int world) {
  const CodecOffer* codec = nullptr;
  const CollectiveModel* collective = nullptr;
  std::set<std::string> codecs, collectives;
  for (const CodecOffer& known : capabilities.codecs) {
    if (known.name == choice.codec) codec = &known;
    codecs.insert(known.name);
  }
  for (const CollectiveModel& known : capabilities.collectives) {
    if (known.name == choice.collective) collective = &known;
    collectives.insert(known.name);
  }
  if (codec == nullptr) {
    return NotFound(
        StrCat("unknown codec '", choice.codec, "'; valid: ", ValidNames(choice.codec, codecs)));
  }
  if (collective == nullptr) {
    return NotFound(StrCat("unknown collective '", choice.collective,
                           "'; valid: ", ValidNames(choice.collective, collectives)));
  }
  const std::vector<CodecModel> models = ModelsOf(*codec, world);
  const CodecModel* const model = FindCodec(models, choice.codec, choice.bits);
  const bool table = !collective->exchange.needs_table || (model != nullptr && model->tabled);
  const auto& forms = codec->forms;
  if (!table || std::find(forms.begin(), forms.end(), collective->form) == forms.end()) {
    return InvalidArgument(StrCat(choice.collective, " carries ", collective->form, " payloads, ",
                                  choice.codec, " makes ", codec->form));
  }
  WEIR_RETURN_IF_ERROR(CheckSetting(*codec, choice, world));
  if (world < collective->world_min ||
      (collective->world_max != 0 && world > collective->world_max)) {
    return InvalidArgument(StrCat(choice.collective, " cannot run on ", world, " ranks"));
  }
  return OkStatus();
}

LeaseTable TableOf(const JobCapabilities& capabilities, const PlanModel& choices,
                   const std::string& collective, int world) {
  constexpr int kTableLevels = 16;
  const auto choice = std::find_if(choices.begin(), choices.end(), [&](const ChoiceModel& c) {
    return c.collective == collective;
  });
  for (const CodecOffer& codec : capabilities.codecs) {
    if (choice == choices.end() || codec.name != choice->codec) continue;
    for (const SettingOffer& setting : codec.settings) {
      const bool meant = choice->bits == 0 || setting.model.bits == choice->bits;
      if (!Allows(setting, world) || !meant || setting.lane_levels.empty()) continue;
      LeaseTable table{static_cast<uint32_t>(setting.model.bits), setting.lane_levels};
      table.levels.resize(kTableLevels, table.levels.back());
      return table;
    }
  }
  return {};
}

}  // namespace weir
