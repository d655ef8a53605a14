// SPDX-License-Identifier: Apache-2.0
#include "controller/messages/mapping.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "controller/messages/explain.h"
#include "controller/messages/json.h"

namespace weir {
namespace {

using ::testing::HasSubstr;

TEST(MappingTest, CodecsBecomeOneModelPerSettingThatTheWorldAllows) {
  v1::Capabilities capabilities;
  v1::CodecCapability& codec = *capabilities.add_codecs();
  codec.set_name("grid");
  codec.set_form("lanes");
  codec.add_forms("lanes");
  codec.add_forms("float_lanes");
  codec.set_sums_without_decoding(true);
  codec.set_lossy(true);
  codec.set_opt_in(true);
  codec.set_rounds(2);
  codec.set_error_model("max_scaled");
  codec.set_error_divisor(6);
  codec.set_sum_error_squared(0.07);
  codec.set_shared_block(1024);
  codec.set_peak_over_rms(3.7);
  codec.mutable_encode()->set_per_element_s(1e-9);
  codec.mutable_decode()->set_per_kept_s(8e-9);
  const auto add = [&](uint32_t bits, double fixed_bits, uint32_t world_min, uint32_t world_max) {
    v1::CodecSetting& setting = *codec.add_settings();
    setting.set_bits(bits);
    setting.set_fixed_bits(fixed_bits);
    setting.set_levels(bits + 1);
    setting.set_world_min(world_min);
    setting.set_world_max(world_max);
  };
  add(8, 8, 1, 127);
  add(4, 4, 1, 7);
  add(4, 8, 8, 0);
  add(4, 9, 1, 0);  // could never be asked for
  const std::vector<CodecModel> few = CodecsOf(ToModel(capabilities), 4),
                                many = CodecsOf(ToModel(capabilities), 200);
  ASSERT_EQ(few.size(), 2u);
  EXPECT_EQ(few[0].bits, 8);
  EXPECT_EQ(few[0].fixed_bits, 8);
  EXPECT_EQ(few[1].bits, 4);
  EXPECT_EQ(few[1].fixed_bits, 4);
  EXPECT_EQ(few[1].levels, 5);
  for (const CodecModel& model : few) {
    EXPECT_EQ(model.name, "grid");
    EXPECT_EQ(model.forms, (std::vector<std::string>{"lanes", "float_lanes"}));
    EXPECT_TRUE(model.sums_without_decoding);
    EXPECT_FALSE(model.indices_apart);
    EXPECT_TRUE(model.opt_in && model.lossy);
    EXPECT_EQ(model.rounds, 2);
    EXPECT_EQ(model.peak_over_rms, 3.7);
    EXPECT_EQ(model.error_divisor, 6);
    EXPECT_EQ(model.sum_error_squared, 0.07);
    EXPECT_EQ(model.shared_block, 1024);
    EXPECT_EQ(model.encode.per_element_s, 1e-9);
    EXPECT_EQ(model.decode.per_kept_s, 8e-9);
  }
  ASSERT_EQ(many.size(), 1u);
  EXPECT_EQ(many[0].bits, 4);
  EXPECT_EQ(many[0].fixed_bits, 8);
}

TEST(MappingTest, CollectivesSurviveTheRoundTrip) {
  v1::CollectiveCapability ring;
  ring.set_name("ring");
  ring.set_form("lanes");
  ring.mutable_latency()->set_n_minus_1(2);
  ring.mutable_payload()->set_n_minus_1_over_n(2);
  ring.set_world_min(1);
  EXPECT_EQ(ToProto(ToModel(ring)).latency().n_minus_1(), 2);
  EXPECT_EQ(ToProto(ToModel(ring)).payload().n_minus_1_over_n(), 2);
  EXPECT_FALSE(ToModel(ring).by_node);
  EXPECT_FALSE(ToProto(ToModel(ring)).has_node_cost());
  ring.set_all_pairs(true);
  EXPECT_TRUE(ToModel(ring).all_pairs);
  EXPECT_TRUE(ToProto(ToModel(ring)).all_pairs());
  ring.set_all_pairs(false);
  EXPECT_FALSE(ToModel(ring).by_caller);
  ring.set_by_caller(true);
  EXPECT_TRUE(ToModel(ring).by_caller);
  EXPECT_TRUE(ToProto(ToModel(ring)).by_caller());
  ring.set_by_caller(false);
  ring.set_payload_pattern("doubling");
  ring.set_index_pattern("broadcast");
  EXPECT_EQ(ToModel(ring).payload_pattern, "doubling");
  EXPECT_EQ(ToProto(ToModel(ring)).index_pattern(), "broadcast");
  v1::CollectiveCapability by_node = ring;
  by_node.mutable_node_cost()->mutable_even()->mutable_latency()->set_log2_n(3);
  by_node.mutable_node_cost()->mutable_uneven()->mutable_payload()->set_n_minus_1(5);
  const CollectiveModel model = ToModel(by_node);
  EXPECT_TRUE(model.by_node);
  EXPECT_FALSE(model.all_pairs);
  EXPECT_EQ(model.within_even.latency.log2_n, 3);
  EXPECT_EQ(model.within_uneven.payload.n_minus_1, 5);
  EXPECT_EQ(ToModel(ToProto(model)), model);
  EXPECT_EQ(model.exchange, ExchangeModel());
  by_node.mutable_exchange()->set_gathers(true);
  by_node.mutable_exchange()->set_encodes_regions(true);
  by_node.mutable_exchange()->set_encodes_nodes(true);
  by_node.mutable_exchange()->set_shares_nodes(true);
  by_node.mutable_exchange()->set_needs_table(true);
  by_node.mutable_exchange()->set_on_devices(true);
  by_node.mutable_exchange()->set_gain_prior(0.6);
  const ExchangeModel exchange = ToModel(by_node).exchange;
  EXPECT_TRUE(exchange.gathers && exchange.encodes_regions && exchange.encodes_nodes &&
              exchange.shares_nodes && exchange.needs_table && exchange.on_devices);
  EXPECT_EQ(exchange.gain_prior, 0.6);
  EXPECT_EQ(ToModel(ToProto(ToModel(by_node))), ToModel(by_node));
  by_node.mutable_exchange()->set_gain_prior(7);  // more than there is
  EXPECT_EQ(ToModel(by_node).exchange.gain_prior, 1);
  ring.set_block_elements(64);
  ring.set_own_block_share(0.25);
  ring.set_union_block_share(7);  // more than there is
  const CollectiveModel sparse = ToModel(ring);
  EXPECT_EQ(sparse.union_block_share, 0.75);
  EXPECT_EQ(ToProto(sparse).block_elements(), 64u);
  EXPECT_EQ(ToProto(sparse).own_block_share(), 0.25);
  EXPECT_EQ(ToProto(sparse).union_block_share(), 0.75);
}

TEST(MappingTest, HostileNumbersBecomeFiniteAndBounded) {
  v1::StepReport report;
  report.set_step_s(std::numeric_limits<double>::infinity());
  report.set_compute_s(-3);
  report.set_has_loss(true);
  report.set_loss(std::numeric_limits<double>::quiet_NaN());
  auto* sample = report.add_buckets();
  sample->set_gain(7);
  sample->set_network_s(std::numeric_limits<double>::quiet_NaN());
  auto* arrival = report.add_arrivals();
  arrival->set_peer_rank(3);
  arrival->set_s_per_byte(4e-8);
  arrival->set_relative_deviation(std::numeric_limits<double>::quiet_NaN());
  arrival->set_payload_bytes(300000);
  arrival->set_within_burst(true);
  auto* density = report.add_block_densities();
  density->set_block_elements(64);
  density->set_own(1.5);
  density->set_combined(0.5);
  report.add_block_densities()->set_own(std::numeric_limits<double>::quiet_NaN());
  const StepObservation step = ToModel(3, report);
  ASSERT_EQ(step.arrivals.size(), 1u);
  EXPECT_EQ(step.arrivals[0].source_rank, 3);
  EXPECT_EQ(step.arrivals[0].s_per_byte, 4e-8);
  EXPECT_EQ(step.arrivals[0].relative_deviation, 0) << "not a number";
  EXPECT_EQ(step.arrivals[0].payload_bytes, 300000);
  EXPECT_TRUE(step.arrivals[0].within_burst);
  ASSERT_EQ(step.block_densities.size(), 1u);
  EXPECT_EQ(step.block_densities[0].own, 1);
  EXPECT_FALSE(step.block_densities[0].combined.has_value()) << "not said to be measured";
  EXPECT_EQ(step.rank, 3);
  EXPECT_EQ(step.step_s, 0);
  EXPECT_EQ(step.compute_s, 0);
  EXPECT_FALSE(step.loss.has_value());
  EXPECT_EQ(step.buckets[0].gain, 1);
  EXPECT_EQ(step.buckets[0].network_s, 0);
}

TEST(MappingTest, HelloAndBucketTablesAreChecked) {
  v1::RankHello hello;
  hello.set_job("j");
  hello.set_world(2);
  EXPECT_TRUE(CheckHello(hello).ok());
  hello.set_rank(2);
  EXPECT_THAT(Message(CheckHello(hello)), testing::HasSubstr("rank 2 of a world of 2"));
  hello.set_rank(0);
  hello.set_world(0);
  EXPECT_FALSE(CheckHello(hello).ok());
  hello.set_world(2);
  hello.set_job(std::string("a\nb"));
  EXPECT_FALSE(CheckHello(hello).ok());
  hello.set_job("");
  EXPECT_FALSE(CheckHello(hello).ok());

  v1::BucketTable table;
  EXPECT_FALSE(DefinitionsOf(ToModel(table)).ok());
  for (const char* key : {"b", "a"}) {
    auto* bucket = table.add_buckets();
    bucket->set_key(key);
    bucket->set_elements(5);
    bucket->set_order(key[0] - 'a');
    bucket->set_sharded(key[0] == 'b');
    bucket->set_dtype(key[0] == 'b' ? "bfloat16" : "float32");
  }
  const auto buckets = DefinitionsOf(ToModel(table));
  ASSERT_TRUE(buckets.ok());
  EXPECT_EQ((*buckets)[0].key, "a") << "ready order, not table order";
  EXPECT_FALSE((*buckets)[0].sharded);
  EXPECT_TRUE((*buckets)[1].sharded);
  EXPECT_EQ((*buckets)[0].element_bytes, 4);
  EXPECT_EQ((*buckets)[1].element_bytes, 2);
  table.mutable_buckets(0)->set_key("a");
  EXPECT_THAT(Message(DefinitionsOf(ToModel(table)).status()), testing::HasSubstr("listed twice"));
}

TEST(JsonTest, StrictAndBounded) {
  v1::PinRequest pin;
  EXPECT_TRUE(FromJson(R"({"job":"j","choice":{"codec":"fp16"}})", &pin).ok());
  EXPECT_EQ(pin.choice().codec(), "fp16");
  EXPECT_EQ(FromJson(R"({"jobs":"j"})", &pin).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(FromJson("{", &pin).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(FromJson(R"({"job":3})", &pin).code(), StatusCode::kInvalidArgument);
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  EXPECT_THAT(Message(FromJson(deep, &pin)), testing::HasSubstr("deeper"));
  v1::StepReport report;
  report.set_step(std::numeric_limits<uint64_t>::max());
  EXPECT_THAT(ToJson(report), testing::HasSubstr("\"step\":\"18446744073709551615\""));
}

TEST(ExplainTest, SaysWhatWasMeasuredComparedAndWhatDenseCosts) {
  v1::Explanation explanation;
  auto* decision = explanation.mutable_decision();
  decision->set_job("lm");
  decision->set_switched(true);
  decision->set_from("dense over ring");
  decision->set_to("top_k 0.01 over sparse_all_gather");
  decision->set_reason("bandwidth fell");
  decision->set_dense_step_s(1.0);
  decision->set_predicted_step_s(0.25);
  decision->set_binding_constraint("ratio_min 0.01");
  auto* candidate = decision->add_candidates();
  candidate->set_label("top_k 0.01 over sparse_all_gather");
  candidate->set_chosen(true);
  candidate->set_feasible(true);
  explanation.mutable_bandwidth_bytes_per_s()->set_value(12.4e6);
  explanation.mutable_latency_s()->set_value(0.0042);
  const std::string text = ExplainText(explanation);
  for (const char* part : {"99.2 Mb/s", "4.2 ms", "* top_k 0.01", "ratio_min 0.01", "(saves 75 %)",
                           "dense over ring -> top_k", "bandwidth fell"}) {
    EXPECT_THAT(text, testing::HasSubstr(part));
  }
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("Aggregator:")));
}

TEST(JsonTest, AMemberIsTakenOutWithoutBeingParsed) {
  const std::pair<const char*, const char*> kCases[] = {
      {R"({"a":1,"c":[{"c":2}],"b":"x"})", R"({"a":1,"b":"x"})"},
      {R"({"c":[1,[2]],"b":{"c":3}})", R"({"b":{"c":3}})"},
      {R"({"a":1,"c":"},\"]"})", R"({"a":1})"},
      {R"({"c":0})", R"({})"},
      {R"({ "a" : "c", "c" : { } , "b" : 1 })", R"({ "a" : "c", "b" : 1 })"},
      {R"({"a":"\"c\":1"})", R"({"a":"\"c\":1"})"},
      {R"({"cc":1,"b":2})", R"({"cc":1,"b":2})"},
      {R"(["c"])", R"(["c"])"},
      {R"({"c":)", R"({"c":)"},
      {"", ""}};
  for (const auto& [json, expected] : kCases) EXPECT_EQ(WithoutMember(json, "c"), expected) << json;
}

TEST(ExplainTest, SummaryIsWhatChangedAndWhatCameOfIt) {
  DecisionRecord record;
  record.step = 68;
  record.switched = true;
  record.trigger.changes = {
      {.of = Change::Of::kBandwidth, .before = 55e6 / 8, .after = 60e6 / 8, .step = 66},
      {.of = Change::Of::kBandwidth,
       .seen = Change::Seen::kSincePlan,
       .before = 33e6 / 8,
       .after = 60e6 / 8}};
  record.facts.chosen = {.label = "top_k 0.1 over sparse_all_gather", .step_s = 0.44, .gain = 0.96};
  record.facts.dense_step_s = 0.57;
  record.facts.incumbent = PlanFacts{.label = "dense over ring", .step_s = 0.57, .gain = 1};
  EXPECT_EQ(SummaryText(record),
            "Step 68: bandwidth rose 33 Mb/s -> 60 Mb/s. Now top_k 0.1 over sparse_all_gather "
            "instead of dense over ring; predicted 0.44 s (dense 0.57 s), keeps 96 %.");
  record.trigger.changes = {
      {.of = Change::Of::kPlanGain, .before = 1, .after = 0.02, .plan_version = 7},
      {.of = Change::Of::kLoss, .before = 1.9, .after = 2.1, .plan_version = 7}};
  EXPECT_THAT(
      SummaryText(record),
      HasSubstr("Step 68: plan 7 keeps 2 % where 100 % was predicted, the loss is 2.1 where "
                "1.9 was expected. Now top_k"));
  record.switched = false;
  record.trigger = {.kind = TriggerKind::kPeriodic};
  EXPECT_EQ(SummaryText(record),
            "Step 68: no estimate has changed. top_k 0.1 over sparse_all_gather stays; predicted "
            "0.44 s (dense 0.57 s), keeps 96 %.");
  record.switched = true;
  record.facts.incumbent.reset();
  record.withdrawn_for = "rank 1: no memory";
  EXPECT_EQ(SummaryText(record),
            "Step 68: the first plan. Now top_k 0.1 over sparse_all_gather; predicted 0.44 s "
            "(dense 0.57 s), keeps 96 %. Withdrawn: rank 1: no memory.");
}

TEST(DecisionMappingTest, TriggersAndOutcomesAreEnumerationsAndFormerRecordsHaveTheWords) {
  for (int kind = 1; kind <= static_cast<int>(TriggerKind::kDenseCheck); ++kind) {
    for (int outcome = 1; outcome <= static_cast<int>(DecisionOutcome::kWithdrawn); ++outcome) {
      DecisionRecord record;
      record.trigger.kind = static_cast<TriggerKind>(kind);
      record.outcome = static_cast<DecisionOutcome>(outcome);
      v1::Decision stored = ToProto(record);
      EXPECT_TRUE(stored.trigger().empty() && stored.outcome().empty()) << "no words are stored";
      EXPECT_EQ(ToModel(stored).trigger.kind, record.trigger.kind);
      EXPECT_EQ(ToModel(stored).outcome, record.outcome);
      AddWords(&stored);
      EXPECT_EQ(TriggerNamed(stored.trigger()), record.trigger.kind) << stored.trigger();
      EXPECT_EQ(OutcomeNamed(stored.outcome()), record.outcome) << stored.outcome();
      v1::Decision former;
      former.set_trigger(stored.trigger());
      former.set_outcome(stored.outcome());
      EXPECT_EQ(ToModel(former).trigger.kind, record.trigger.kind);
      EXPECT_EQ(ToModel(former).outcome, record.outcome);
    }
  }
  v1::Decision newer;
  newer.set_trigger_kind(static_cast<v1::DecisionTrigger>(999));
  newer.set_result(static_cast<v1::DecisionOutcome>(-3));
  EXPECT_EQ(ToModel(newer).trigger.kind, TriggerKind::kNone);
  EXPECT_EQ(ToModel(newer).outcome, DecisionOutcome::kNone);
}

TEST(DecisionMappingTest, ABrokenPromiseIsData) {
  DecisionRecord record;
  record.facts.rule = DecisionRule::kPromiseBroken;
  record.facts.failures = 3;
  record.facts.held_s = 240;
  record.trigger.changes = {
      {.of = Change::Of::kStepTime, .before = 0.4, .after = 1.02, .plan_version = 7}};
  const DecisionRecord back = ToModel(ToProto(record));
  EXPECT_EQ(back.facts, record.facts);
  EXPECT_EQ(back.trigger.changes, record.trigger.changes);
  EXPECT_EQ(TriggerText(back.trigger),
            "plan 7 takes 1.02 s for the progress of a dense step, 0.4 s were promised");
}

v1::Candidate* AddCandidate(v1::Decision* decision, const char* collective, double step_s,
                            const char* excluded_by = "") {
  auto* candidate = decision->add_candidates();
  candidate->set_label(StrCat("dense over ", collective));
  candidate->mutable_choice()->set_collective(collective);
  candidate->set_step_s(step_s);
  candidate->set_excluded_by(excluded_by);
  candidate->set_feasible(candidate->excluded_by().empty());
  return candidate;
}

TEST(ExplainTest, SaysWhatAnAggregatorWouldBring) {
  v1::Explanation explanation;
  auto* decision = explanation.mutable_decision();
  AddCandidate(decision, "tree", 0.1, "collectives");
  AddCandidate(decision, "ring", 0.5)->set_chosen(true);
  AddCandidate(decision, "recursive_doubling", 0.6);
  auto* there = AddCandidate(decision, "switchml", 0.75);
  EXPECT_THAT(ExplainText(explanation),
              testing::HasSubstr("\nAggregator: dense over switchml would take 0.75 s per step, "
                                 "dense over ring takes 0.5 s\n"));
  there->set_chosen(true);
  decision->mutable_candidates(1)->set_chosen(false);
  EXPECT_THAT(ExplainText(explanation),
              testing::HasSubstr("\nAggregator: dense over switchml takes 0.75 s per step, "
                                 "dense over ring would take 0.5 s\n"));
  there->set_feasible(false);
  there->set_excluded_by("switchml: no aggregator has 64 free slots (tor has 12)");
  EXPECT_THAT(
      ExplainText(explanation),
      testing::HasSubstr("\nAggregator: switchml: no aggregator has 64 free slots (tor has 12)\n"));
  // The text does not mention a collective that the policy leaves out, however fast it would be.
  AddCandidate(decision, "omnireduce", 0.01, "collectives");
  EXPECT_THAT(ExplainText(explanation),
              testing::HasSubstr("\nAggregator: switchml: no aggregator"));
  decision->mutable_candidates()->RemoveLast();
  there->set_excluded_by("collectives");
  EXPECT_THAT(ExplainText(explanation),
              testing::HasSubstr("\nAggregator: dense over switchml is excluded by collectives\n"));
}

}  // namespace
}  // namespace weir
