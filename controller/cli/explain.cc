// SPDX-License-Identifier: Apache-2.0
#include "controller/cli/explain.h"

#include <cstdio>

namespace weir::cli {
namespace {

/// The controller's own text, and by which numbers its history knows the decision.
std::string ExplanationText(const v1::Explanation& explanation) {
  const v1::Decision& decision = explanation.decision();
  std::string text = explanation.text();
  if (text.empty() || text.back() != '\n') text += "\n";
  text += StrCat("decision ", decision.id(), " at step ", decision.step(), " (", decision.trigger(),
                 "), outcome ", decision.outcome(), ", digest ", decision.digest(), "\n");
  return text;
}

}  // namespace

Status Explain(Client& client, const ExplainOptions& options, Output output) {
  v1::ExplainRequest request;
  request.set_job(options.job);
  request.set_decision_id(options.decision);
  v1::Explanation explanation;
  WEIR_RETURN_IF_ERROR(client.Call(&v1::AdminService::Stub::Explain, request, &explanation));
  const std::string text =
      output == Output::kTable ? ExplanationText(explanation) : Render(explanation, output);
  std::fputs(text.c_str(), stdout);
  if (!options.replay) return OkStatus();
  v1::ReplayRequest again;
  again.set_id(explanation.decision().id());
  v1::ReplayResponse answer;
  WEIR_RETURN_IF_ERROR(client.Call(&v1::AdminService::Stub::Replay, again, &answer));
  if (!answer.identical()) {
    return Internal(StrCat("replay of decision ", again.id(), " differs: stored ",
                           answer.stored_digest(), ", replayed ", answer.replayed_digest()));
  }
  std::fflush(stdout);  // into one file both come in this order, too
  std::fprintf(stderr, "replay: identical (%s)\n", answer.replayed_digest().c_str());
  return OkStatus();
}

}  // namespace weir::cli
