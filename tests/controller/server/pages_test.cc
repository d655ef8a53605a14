// SPDX-License-Identifier: Apache-2.0
// Lists that can grow have pages, which together are the whole list.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/controller/fleet/fake_cluster.h"

namespace weir {
namespace {

class PagesTest : public testing::Test {
 protected:
  PagesTest()
      : store_(std::move(*OpenSqliteStore(":memory:"))),
        plane_(std::make_unique<ControlPlane>(FleetOptions{}, clock_, *store_, events_)) {}

  FakeClock clock_;
  EventHub events_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<ControlPlane> plane_;
  FakeCluster cluster_{4, clock_};
};

// Lists of any size: pages of `size` together are the whole, in order and without repetition.
template <typename Request, typename List>
std::vector<std::string> InPages(List list, uint32_t size) {
  std::vector<std::string> all;
  Request request;
  request.set_page_size(size);
  for (int pages = 0; pages < 100; ++pages) {
    const auto [names, next] = list(request);
    EXPECT_LE(names.size(), size);
    all.insert(all.end(), names.begin(), names.end());
    request.set_page_token(next);
    if (next.empty()) return all;
  }
  ADD_FAILURE() << "the pages have no end";
  return all;
}

TEST_F(PagesTest, ListsOfDecisionsLeaveCandidatesToTheDecisionItself) {
  cluster_.Connect(*plane_);
  for (int i = 0; i < 60; ++i) cluster_.Step();
  v1::ListDecisionsRequest request;
  v1::ListDecisionsResponse list;
  ASSERT_TRUE(plane_->admin.ListDecisions(request, &list).ok());
  ASSERT_FALSE(list.decisions().empty());
  for (const v1::Decision& decision : list.decisions()) {
    EXPECT_TRUE(decision.candidates().empty()) << decision.id();
    EXPECT_LT(decision.ByteSizeLong(), 4096u) << decision.id();
    v1::GetDecisionRequest one;
    one.set_id(decision.id());
    v1::Decision whole;
    ASSERT_TRUE(plane_->admin.GetDecision(one, &whole).ok());
    EXPECT_GT(whole.candidates_size(), 1) << decision.id();
  }
}

TEST_F(PagesTest, ListsComeInPages) {
  cluster_.Connect(*plane_);
  for (int i = 0; i < 60; ++i) cluster_.Step();
  StoredDecision decision;
  decision.job = "lm";
  decision.payload = "{}";
  for (int i = 0; i < 7; ++i) ASSERT_TRUE(store_->AddDecision(decision).ok());  // several pages
  const auto nodes = [&](const v1::ListNodesRequest& request) {
    v1::ListNodesResponse answer;
    EXPECT_TRUE(plane_->admin.ListNodes(request, &answer).ok());
    std::vector<std::string> names;
    for (const v1::Node& node : answer.nodes()) names.push_back(node.name());
    return std::make_pair(names, answer.next_page_token());
  };
  const auto links = [&](const v1::ListLinksRequest& request) {
    v1::ListLinksResponse answer;
    EXPECT_TRUE(plane_->admin.ListLinks(request, &answer).ok());
    std::vector<std::string> names;
    for (const v1::Link& link : answer.links())
      names.push_back(link.source() + ">" + link.target());
    return std::make_pair(names, answer.next_page_token());
  };
  const auto decisions = [&](const v1::ListDecisionsRequest& request) {
    v1::ListDecisionsResponse answer;
    EXPECT_TRUE(plane_->admin.ListDecisions(request, &answer).ok());
    std::vector<std::string> names;
    for (const v1::Decision& decision : answer.decisions()) names.push_back(decision.id());
    return std::make_pair(names, answer.next_page_token());
  };
  const auto whole_nodes = nodes({}).first, whole_links = links({}).first;
  ASSERT_EQ(whole_nodes.size(), 4u);
  ASSERT_GT(whole_links.size(), 3u);
  ASSERT_GE(decisions({}).first.size(), 7u);
  for (const uint32_t size : {1u, 3u, 4u, 100000u}) {
    EXPECT_EQ(InPages<v1::ListNodesRequest>(nodes, size), whole_nodes) << size;
    EXPECT_EQ(InPages<v1::ListLinksRequest>(links, size), whole_links) << size;
    EXPECT_EQ(InPages<v1::ListDecisionsRequest>(decisions, size), decisions({}).first) << size;
  }
  v1::ListLinksRequest of_one;
  of_one.set_node(whole_nodes[1]);
  const auto of_node = links(of_one).first;
  EXPECT_LT(of_node.size(), whole_links.size());
  const auto only_its = [&](v1::ListLinksRequest request) {
    request.set_node(whole_nodes[1]);
    return links(request);
  };
  EXPECT_EQ(InPages<v1::ListLinksRequest>(only_its, 1), of_node);
}

TEST_F(PagesTest, PoliciesComeInOrderOfPrecedence) {
  constexpr size_t kClientBytesMax = 4u << 20;  // gRPC's default
  constexpr int kPolicies = 70;                 // of the largest: more than that
  std::vector<std::string> expected;
  for (int i = kPolicies; i-- > 0;) {
    const std::string name = StrCat("p", 100 + i);
    expected.insert(expected.begin(), name);
    v1::ApplyPolicyRequest apply;
    apply.set_name(name);
    apply.set_source(StrCat("name: ", name, "\n# ", std::string(63 << 10, 'x'), "\n"));
    v1::ApplyPolicyResponse applied;
    ASSERT_TRUE(plane_->admin.ApplyPolicy(apply, &applied).ok());
  }
  expected.emplace_back("default");
  const auto policies = [&](const v1::ListPoliciesRequest& request) {
    v1::ListPoliciesResponse answer;
    EXPECT_TRUE(plane_->admin.ListPolicies(request, &answer).ok());
    EXPECT_LE(answer.ByteSizeLong(), kClientBytesMax);
    std::vector<std::string> names;
    for (const v1::Policy& policy : answer.policies()) names.push_back(policy.name());
    return std::make_pair(names, answer.next_page_token());
  };
  for (const uint32_t size : {1u, 7u, 100000u}) {
    EXPECT_EQ(InPages<v1::ListPoliciesRequest>(policies, size), expected) << size;
  }
  v1::ListPoliciesRequest gone;
  gone.set_page_token("100000ap1671");  // this entry no longer exists
  EXPECT_THAT(policies(gone).first, testing::ElementsAre("p168", "p169", "default"));
}

TEST_F(PagesTest, AggregatorsComeByName) {
  plane_->fleet.sums().Use({{"tor-2", "http://10.0.0.2:1"},
                            {"tor-1", "http://10.0.0.1:1"},
                            {"spine", "http://10.0.0.3:1"}},
                           nullptr);
  const auto aggregators = [&](const v1::ListAggregatorsRequest& request) {
    v1::ListAggregatorsResponse answer;
    EXPECT_TRUE(plane_->admin.ListAggregators(request, &answer).ok());
    std::vector<std::string> names;
    for (const v1::Aggregator& one : answer.aggregators()) names.push_back(one.name());
    return std::make_pair(names, answer.next_page_token());
  };
  for (const uint32_t size : {1u, 2u, 100000u}) {
    EXPECT_THAT(InPages<v1::ListAggregatorsRequest>(aggregators, size),
                testing::ElementsAre("spine", "tor-1", "tor-2"));
  }
}

v1::AgentMessage LargestHello(int number) {
  v1::AgentMessage message;
  auto* hello = message.mutable_hello();
  std::string name = StrCat(1000 + number);
  name.resize(253, 'n');
  hello->set_node(name);
  hello->set_address("10.0.0.1");
  for (int i = 0; i < 64; ++i) hello->add_interfaces()->set_name(std::string(63, 'e'));
  for (int i = 0; i < 32; ++i) {
    hello->add_gpus()->set_name(std::string(96, 'g'));
    hello->mutable_gpus(i)->set_uuid(std::string(96, 'u'));
  }
  return message;
}

// This also holds for a client that asks for all items, or that sets no page size and ignores
// tokens: it gets the first page, which says that there is more.
TEST_F(PagesTest, APageFitsIntoTheMessageOfAnyClient) {
  constexpr size_t kClientBytesMax = 4u << 20;  // gRPC's default
  constexpr int kNodes = 1000;
  std::vector<std::shared_ptr<FakeAgent>> agents;
  size_t whole = 0;
  for (int i = 0; i < kNodes; ++i) {
    agents.push_back(std::make_shared<FakeAgent>());
    const v1::AgentMessage hello = LargestHello(i);
    whole += hello.ByteSizeLong();
    ASSERT_TRUE(plane_->agents.OnMessage(agents.back(), hello).ok());
  }
  ASSERT_GT(whole, kClientBytesMax);
  for (const uint32_t asked : {0u, 5000u, 4294967295u}) {
    v1::ListNodesRequest request;
    request.set_page_size(asked);
    int found = 0, pages = 0;
    do {
      v1::ListNodesResponse answer;
      ASSERT_TRUE(plane_->admin.ListNodes(request, &answer).ok());
      ASSERT_FALSE(answer.nodes().empty());
      EXPECT_LE(answer.ByteSizeLong(), kClientBytesMax / 2 + (16u << 10));
      for (const v1::Node& node : answer.nodes())
        EXPECT_EQ(node.name(), LargestHello(found++).hello().node());
      request.set_page_token(answer.next_page_token());
      ++pages;
    } while (!request.page_token().empty() && found <= kNodes);
    EXPECT_EQ(found, kNodes);
    EXPECT_GT(pages, 1);
  }
}

TEST_F(PagesTest, NodesReportTheCausesOfNcclWaits) {
  const auto agent = std::make_shared<FakeAgent>();
  ASSERT_TRUE(plane_->agents.OnMessage(agent, LargestHello(0)).ok());
  const auto node = [&] {
    v1::ListNodesResponse answer;
    EXPECT_TRUE(plane_->admin.ListNodes({}, &answer).ok());
    return answer.nodes(0);
  };
  EXPECT_FALSE(node().has_nccl());
  v1::AgentMessage message;
  message.mutable_nccl()->set_communicators(2);
  message.mutable_nccl()->set_wire_s(1.5);
  ASSERT_TRUE(plane_->agents.OnMessage(agent, message).ok());
  EXPECT_EQ(node().nccl().communicators(), 2u);
  message.mutable_nccl()->set_wire_s(std::numeric_limits<double>::infinity());
  ASSERT_TRUE(plane_->agents.OnMessage(agent, message).ok());
  EXPECT_EQ(node().nccl().wire_s(), 1.5);
}

TEST_F(PagesTest, NodesThatWouldFillAPageAreRefused) {
  const auto greet = [&](const v1::AgentMessage& hello) {
    return plane_->agents.OnMessage(std::make_shared<FakeAgent>(), hello).code();
  };
  v1::AgentMessage interface = LargestHello(0), count = interface, version = interface,
                   gpu = interface, gpus = interface;
  interface.mutable_hello()->mutable_interfaces(63)->set_name(std::string(64, 'e'));
  count.mutable_hello()->add_interfaces()->set_name("e");
  version.mutable_hello()->set_agent_version(std::string(64, '1'));
  gpu.mutable_hello()->mutable_gpus(31)->set_name(std::string(97, 'g'));
  gpus.mutable_hello()->add_gpus()->set_name("g");
  for (const auto& hello : {interface, count, version, gpu, gpus}) {
    EXPECT_EQ(greet(hello), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(greet(LargestHello(0)), StatusCode::kOk);
}

// A job of the largest world with as many buckets: few other items fit beside it.
TEST_F(PagesTest, LargeItemsStandAloneAndTheListGoesOn) {
  constexpr int kJobs = 3, kBuckets = 4096;
  const auto agent = std::make_shared<FakeAgent>();
  ASSERT_TRUE(plane_->agents.OnMessage(agent, LargestHello(0)).ok());
  for (int job = 0; job < kJobs; ++job) {
    v1::AgentMessage greeting, table;
    auto* from = greeting.mutable_rank();
    from->set_job(StrCat("job", job));
    auto* hello = from->mutable_message()->mutable_hello();
    hello->set_job(from->job());
    hello->set_world(1);
    *hello->mutable_capabilities() = FakeCapabilities();
    ASSERT_TRUE(plane_->agents.OnMessage(agent, greeting).ok());
    table.mutable_rank()->set_job(from->job());
    for (int b = 0; b < kBuckets; ++b) {
      auto* bucket = table.mutable_rank()->mutable_message()->mutable_buckets()->add_buckets();
      std::string key = StrCat(b, ".");
      key.resize(253, 'k');
      bucket->set_key(key);
      bucket->set_elements(1);
    }
    ASSERT_TRUE(plane_->agents.OnMessage(agent, table).ok());
  }
  std::vector<std::string> names;
  v1::ListJobsRequest request;
  do {
    v1::ListJobsResponse answer;
    ASSERT_TRUE(plane_->admin.ListJobs(request, &answer).ok());
    ASSERT_FALSE(answer.jobs().empty());
    EXPECT_LE(answer.ByteSizeLong(), (2u << 20) + (16u << 10));
    EXPECT_GT(answer.jobs(0).ByteSizeLong(), 1u << 20);
    for (const v1::Job& job : answer.jobs()) names.push_back(job.name());
    request.set_page_token(answer.next_page_token());
  } while (!request.page_token().empty() && names.size() <= kJobs);
  EXPECT_THAT(names, testing::ElementsAre("job0", "job1", "job2"));
}

TEST_F(PagesTest, InvalidPageTokensAreRefused) {
  for (const char* token : {"x", "3", "9:ab", "-1:a", "99999999999999999999:a", ":"}) {
    v1::ListLinksRequest request;
    request.set_page_token(token);
    v1::ListLinksResponse links;
    EXPECT_EQ(plane_->admin.ListLinks(request, &links).code(), StatusCode::kInvalidArgument)
        << token;
  }
  v1::ListNodesRequest past;
  past.set_page_token("zzz");  // of a node that is gone: what follows it
  v1::ListNodesResponse nodes;
  EXPECT_TRUE(plane_->admin.ListNodes(past, &nodes).ok());
  EXPECT_TRUE(nodes.nodes().empty());
}

}  // namespace
}  // namespace weir
