// SPDX-License-Identifier: Apache-2.0
#include "datapath/codec/codec_names.h"

namespace weir {

std::string_view NameOf(PayloadForm form) {
  switch (form) {
    case PayloadForm::kLanes:
      return "lanes";
    case PayloadForm::kOpaque:
      return "opaque";
    case PayloadForm::kSharedIndex:
      return "shared_index";
    case PayloadForm::kUnionIndex:
      return "union_index";
  }
  return "";
}

std::string_view NameOf(ErrorModel model) {
  switch (model) {
    case ErrorModel::kExact:
      return "exact";
    case ErrorModel::kSelection:
      return "selection";
    case ErrorModel::kUniformSelection:
      return "uniform_selection";
    case ErrorModel::kRelative:
      return "relative";
    case ErrorModel::kMaxScaled:
      return "max_scaled";
    case ErrorModel::kUnknown:
      return "unknown";
  }
  return "";
}

}  // namespace weir
