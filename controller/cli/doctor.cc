#include "controller/cli/doctor.h"

#include <cstdio>

#include "controller/cli/render.h"

namespace weir::cli {
namespace {

class Findings {
 public:
  void Ok(const std::string& text) { std::printf("ok    %s\n", text.c_str()); }
  void Warn(const std::string& text) { std::printf("warn  %s\n", text.c_str()); }
  void Fail(const std::string& text) {
    std::printf("FAIL  %s\n", text.c_str());
    ++failed_;
  }
  int failed() const { return failed_; }

 private:
  int failed_ = 0;
};

void CheckNodes(const v1::ListNodesResponse& nodes, Findings* findings) {
  if (nodes.nodes().empty()) {
    findings->Warn("no agent has connected; start weir-agent on every training node");
  }
  for (const v1::Node& node : nodes.nodes()) {
    if (node.connected()) {
      findings->Ok(StrCat("agent on ", node.name(), " (", node.address(), ") is connected"));
    } else {
      findings->Fail(StrCat("agent on ", node.name(), " (", node.address(),
                            ") is not connected; its ranks keep their active plan"));
    }
  }
}

void CheckLinks(const v1::ListLinksResponse& links, Findings* findings) {
  constexpr double kStaleSeconds = 60;
  for (const v1::Link& link : links.links()) {
    if (link.rtt_s().samples() > 0 && link.rtt_s().age_s() > kStaleSeconds) {
      findings->Warn(StrCat("link ", link.source(), " -> ", link.target(),
                            ": latency was last measured ", Age(link.rtt_s().age_s()), " ago"));
    }
  }
  findings->Ok(StrCat(links.links_size(), " directed links have measurements"));
}

void CheckJobs(const v1::ListJobsResponse& jobs, Findings* findings) {
  if (jobs.jobs().empty()) {
    findings->Warn("no training job has attached; set WEIR_AGENT in the job's environment");
  }
  for (const v1::Job& job : jobs.jobs()) {
    if (job.state() == "ended") continue;
    int connected = 0;
    for (const v1::Rank& rank : job.ranks()) {
      connected += rank.connected() ? 1 : 0;
      if (rank.connected() && rank.plan_version() != job.active_plan().version()) {
        findings->Warn(StrCat("job ", job.name(), ": rank ", rank.rank(), " reports plan ",
                              rank.plan_version(), ", the job's is ", job.active_plan().version()));
      }
    }
    const std::string ranks =
        StrCat("job ", job.name(), ": ", connected, " of ", job.world(), " ranks attached");
    if (connected == static_cast<int>(job.world())) {
      findings->Ok(ranks);
    } else {
      findings->Fail(ranks);
    }
  }
}

}  // namespace

Status Doctor(Client& client) {
  Findings findings;
  v1::ListNodesResponse nodes;
  WEIR_RETURN_IF_ERROR(
      client.Call(&v1::AdminService::Stub::ListNodes, v1::ListNodesRequest(), &nodes));
  findings.Ok(StrCat("controller at ", client.options().controller, " answers"));
  v1::ListLinksResponse links;
  WEIR_RETURN_IF_ERROR(
      client.Call(&v1::AdminService::Stub::ListLinks, v1::ListLinksRequest(), &links));
  v1::ListJobsResponse jobs;
  WEIR_RETURN_IF_ERROR(
      client.Call(&v1::AdminService::Stub::ListJobs, v1::ListJobsRequest(), &jobs));
  v1::ListPoliciesResponse policies;
  WEIR_RETURN_IF_ERROR(
      client.Call(&v1::AdminService::Stub::ListPolicies, v1::ListPoliciesRequest(), &policies));
  CheckNodes(nodes, &findings);
  CheckLinks(links, &findings);
  CheckJobs(jobs, &findings);
  for (const v1::Policy& policy : policies.policies()) {
    if (!policy.error().empty()) {
      findings.Fail(StrCat("policy ", policy.name(), ": newest text rejected: ", policy.error()));
    }
  }
  if (findings.failed() > 0) {
    return Internal(StrCat(findings.failed(), " checks failed"));
  }
  return OkStatus();
}

}  // namespace weir::cli
