// SPDX-License-Identifier: Apache-2.0
#include "datapath/plan/sync.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "datapath/plan/canonical_number.h"

namespace weir {
namespace {

constexpr size_t kOuterNameBytesMax = 64;

// The names of weir.v1.OuterStep.
constexpr std::pair<OuterStep, const char*> kOuterSteps[] = {
    {OuterStep::kAverage, "OUTER_STEP_AVERAGE"},
    {OuterStep::kSgdNesterov, "OUTER_STEP_SGD_NESTEROV"},
    {OuterStep::kSign, "OUTER_STEP_SIGN"},
};

constexpr char kDctName[] = "SYNC_TRANSFORM_DCT", kNoTransformName[] = "SYNC_TRANSFORM_UNSPECIFIED";

const char* NameOf(OuterStep outer) {
  return std::find_if(std::begin(kOuterSteps), std::end(kOuterSteps),
                      [&](const auto& each) { return each.first == outer; })
      ->second;
}

}  // namespace

StatusOr<Sync> ReadSync(const nlohmann::json& value, std::string path, bool reject_unknown) {
  WEIR_ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Make(value, std::move(path)));
  Sync sync;
  std::string outer = NameOf(sync.outer);
  WEIR_RETURN_IF_ERROR(reader.Uint32("every", &sync.every));
  WEIR_RETURN_IF_ERROR(reader.String("outer", kOuterNameBytesMax, &outer));
  WEIR_RETURN_IF_ERROR(reader.Double("outer_rate", &sync.rate));
  WEIR_RETURN_IF_ERROR(reader.Double("outer_momentum", &sync.momentum));
  WEIR_RETURN_IF_ERROR(reader.Uint32("fragments", &sync.fragments));
  WEIR_RETURN_IF_ERROR(reader.Uint32("overlap_steps", &sync.overlap));
  WEIR_RETURN_IF_ERROR(reader.Double("mix", &sync.mix));
  WEIR_RETURN_IF_ERROR(reader.Double("residual_decay", &sync.residual_decay));
  std::string transform = kNoTransformName;
  WEIR_RETURN_IF_ERROR(reader.String("transform", kOuterNameBytesMax, &transform));
  if (sync.every < 1 || sync.every > kPlanSyncEveryMax) {
    return InvalidArgument(StrCat(reader.PathOf("every"), ": expected 1..", kPlanSyncEveryMax,
                                  ", found ", sync.every));
  }
  const auto found = std::find_if(std::begin(kOuterSteps), std::end(kOuterSteps),
                                  [&](const auto& each) { return outer == each.second; });
  if (found == std::end(kOuterSteps)) {
    return InvalidArgument(
        StrCat(reader.PathOf("outer"),
               ": expected OUTER_STEP_AVERAGE, OUTER_STEP_SGD_NESTEROV or OUTER_STEP_SIGN, found '",
               outer, "'"));
  }
  sync.outer = found->first;
  if (!(sync.rate > 0 && sync.rate <= 10)) {
    return InvalidArgument(
        StrCat(reader.PathOf("outer_rate"), ": expected 0 < rate <= 10, found ", sync.rate));
  }
  if (!(sync.momentum >= 0 && sync.momentum < 1)) {
    return InvalidArgument(StrCat(reader.PathOf("outer_momentum"),
                                  ": expected 0 <= momentum < 1, found ", sync.momentum));
  }
  if (sync.fragments < 1 || sync.fragments > std::min(kSyncFragmentsMax, sync.every) ||
      sync.every % sync.fragments != 0) {
    return InvalidArgument(StrCat(reader.PathOf("fragments"), ": expected a divisor of ",
                                  sync.every, " (every) of at most ", kSyncFragmentsMax, ", found ",
                                  sync.fragments));
  }
  if (sync.overlap > 0 && sync.overlap >= sync.every / sync.fragments) {
    return InvalidArgument(StrCat(reader.PathOf("overlap_steps"), ": expected less than ",
                                  sync.every / sync.fragments, " (every / fragments), found ",
                                  sync.overlap));
  }
  if (!(sync.mix >= 0 && sync.mix <= 1)) {
    return InvalidArgument(
        StrCat(reader.PathOf("mix"), ": expected 0 <= mix <= 1, found ", sync.mix));
  }
  if (sync.residual_decay == 0) sync.residual_decay = 1;  // as proto3 leaves it out
  if (!(sync.residual_decay > 0 && sync.residual_decay <= 1)) {
    return InvalidArgument(StrCat(reader.PathOf("residual_decay"),
                                  ": expected 0 < decay <= 1, found ", sync.residual_decay));
  }
  if (transform != kDctName && transform != kNoTransformName) {
    return InvalidArgument(
        StrCat(reader.PathOf("transform"), ": expected ", kDctName, ", found '", transform, "'"));
  }
  if (transform == kDctName) sync.transform = SyncTransform::kDct;
  if (reject_unknown) WEIR_RETURN_IF_ERROR(reader.RejectUnknown());
  return sync;
}

nlohmann::json SyncToJson(const Sync& sync) {
  nlohmann::json json = {{"every", sync.every},
                         {"outer", NameOf(sync.outer)},
                         {"outer_rate", JsonDouble(sync.rate)},
                         {"outer_momentum", JsonDouble(sync.momentum)},
                         {"fragments", sync.fragments},
                         {"overlap_steps", sync.overlap},
                         {"mix", JsonDouble(sync.mix)}};
  if (sync.residual_decay != 1) json["residual_decay"] = JsonDouble(sync.residual_decay);
  if (sync.transform == SyncTransform::kDct) json["transform"] = kDctName;
  return json;
}

std::string CanonicalText(const Sync& sync) {
  return StrCat("sync|", sync.every, "|", NameOf(sync.outer), "|", CanonicalNumber(sync.rate), "|",
                CanonicalNumber(sync.momentum), "|", sync.fragments, "|", sync.overlap, "|",
                CanonicalNumber(sync.mix),
                sync.residual_decay == 1 ? "" : StrCat("|", CanonicalNumber(sync.residual_decay)),
                sync.transform == SyncTransform::kDct ? "|dct" : "", "\n");
}

}  // namespace weir
