// SPDX-License-Identifier: Apache-2.0
// One rank of the benchmark collective_bench: Weir's dense collectives over its transports, and
// Gloo's, which PyTorch runs on CPUs.
//
//   collective_weir_and_gloo SOCKET RANK WORLD HOST GLOO_STORE TRANSPORTS SEGMENT_BYTES
//   BUFFER_BYTES AGGREGATOR
//
// HOST is the address to listen at, TRANSPORTS a comma-separated list, BUFFER_BYTES 0 for defaults,
// AGGREGATOR 1 when the script brings a plan with leases, else 0.

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>

#include "datapath/codec/fused_codec.h"
#include "datapath/collective/collective.h"
#include "datapath/collective/maximum.h"
#include "datapath/collective/primitives.h"
#include "datapath/session/aggregator_port.h"
#include "datapath/transport/options.h"
#include "tests/bench/collective/contestant.h"

namespace weir::bench {
namespace {

struct Options {
  std::string socket;
  int rank = 0, world = 1;
  std::string host, gloo_store;
  std::vector<std::string> transports;
  size_t segment_bytes = kSegmentBytesDefault;
  int buffer_bytes = 0;
  bool aggregator = false;
};

TimePoint Soon() { return RealClock().Now() + std::chrono::minutes(5); }

// A mesh of one transport, and the operations on it.
class Mesh {
 public:
  Mesh(const std::string& name, const Options& options, uint64_t job) : name_(name) {
    TransportOptions transport;
    transport.rank = options.rank;
    transport.world = options.world;
    transport.job = job;
    transport.listen = options.host + ":0";
    transport.send_buffer_bytes = options.buffer_bytes;
    transport.unauthenticated = true;
    // A list of transports contains commas, so options are joined by '+'.
    std::string text = TakeProtection(name, &transport);
    std::replace(text.begin(), text.end(), '+', ',');
    const auto factory = ParseTransport(text, &transport);
    if (!factory.ok()) Die(ToString(factory.status()));
    auto made = (*factory)->Create(transport);
    if (!made.ok()) Die(ToString(made.status()));
    transport_ = std::move(*made);
    group_ = std::make_unique<Group>(*transport_, options.segment_bytes);
  }

  const std::string& name() const { return name_; }
  const TransportAddress& address() const { return transport_->address(); }

  void Connect(const std::vector<TransportAddress>& addresses) {
    if (Status status = transport_->Connect(addresses, Soon()); !status.ok()) Die(ToString(status));
  }

  void Meet() {
    Group& group = Begin();
    if (Status status = Barrier(group); !status.ok()) Die(ToString(status));
  }

  void Run(const Collective& collective, std::vector<float>& values,
           LaneOffload* offload = nullptr) {
    Lanes lanes = FloatLanes(values);  // as the codec identity has it
    Run(collective, lanes, offload);
  }

  void Run(const Collective& collective, Lanes& lanes, LaneOffload* offload) {
    Group& group = Begin();
    group.SetOffload(offload);
    const auto report = RunCollective(collective, group, lanes);
    if (!report.ok()) Die(ToString(report.status()));
    if (offload != nullptr && offload->abandoned()) Die("the aggregator was given up");
  }

  void AgreeOnMaxima(std::span<float> values) {
    Group& group = Begin();
    if (Status status = AllReduceMax(group, values); !status.ok()) Die(ToString(status));
  }

 private:
  // Removes "protection=..." from the options, because no transport has that option.
  static std::string TakeProtection(const std::string& name, TransportOptions* options) {
    constexpr std::string_view kKey = "protection=";
    const size_t begin = name.find(kKey);
    if (begin == std::string::npos) return name;
    const size_t end = std::min(name.find('+', begin), name.size());
    const std::string how = name.substr(begin + kKey.size(), end - begin - kKey.size());
    Protect(how, options);
    // The separator behind it is removed, too, or at the end the one before it.
    return end < name.size() ? name.substr(0, begin) + name.substr(end + 1)
                             : name.substr(0, begin - 1);
  }

  static void Protect(const std::string& how, TransportOptions* options) {
    if (how == "checksums") return;
    if (how != "authenticated" && how != "encrypted") {
      Die("protection: expected checksums, authenticated or encrypted, found " + how);
    }
    options->job_key = JobKey{std::byte{1}};
    options->encrypt = how == "encrypted";
    options->unauthenticated = false;
  }

  Group& Begin() {
    group_->Begin({.plan_version = 0, .op_sequence = op_++, .bucket = 0}, {}, 0, Soon());
    return *group_;
  }

  const std::string name_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Group> group_;
  uint64_t op_ = 0;
};

// THC as in a job: the ranks agree on norms, rotate and round, levels are summed, the sum is
// rotated back. There is no error feedback, because it belongs to successive steps.
class Thc {
 public:
  explicit Thc(int rank, int world) : codec_(**Codecs().Find("thc")) {
    context_.rank = rank;
    context_.world = world;
    context_.params.bits = FindSetting(codec_.Traits(), {}, world)->bits;
  }

  // The ranks' errors are independent, each in proportion to the greatest norm, by the setting's
  // share. It is a mean: vectors of a MiB and more are within a tenth of it.
  double ErrorSquaredMax() const {
    return 1.1 *
           FindSetting(codec_.Traits(), context_.params, context_.world)->relative_error_squared;
  }

  void Run(Mesh& mesh, const Collective& collective, std::vector<float>& values,
           LaneOffload* offload) {
    context_.shared_max = codec_.LocalMax(values, {}, context_);
    mesh.AgreeOnMaxima(context_.shared_max.values());
    ++context_.seed;
    payload_.resize(codec_.MaxEncodedBytes(values.size(), context_));
    const auto encoded = codec_.Encode(values, context_, payload_);
    if (!encoded.ok()) Die(ToString(encoded.status()));
    Lanes lanes;
    lanes.bytes = std::span(payload_).first(encoded->bytes);
    lanes.lane_bytes = codec_.LaneBytes(context_);
    lanes.accumulate = [this](std::span<std::byte> sum, std::span<const std::byte> addend) {
      codec_.Accumulate(context_, sum, addend);
    };
    mesh.Run(collective, lanes, offload);
    std::fill(values.begin(), values.end(), 0.0f);
    const Status decoded = codec_.DecodeAdd(lanes.bytes, context_, 1.0f, values);
    if (!decoded.ok()) Die(ToString(decoded));
  }

 private:
  const Codec& codec_;
  EncodeContext context_;
  std::vector<std::byte> payload_;
};

class Gloo {
 public:
  explicit Gloo(const Options& options) {
    gloo::transport::tcp::attr attributes(options.host.c_str());
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    gloo::rendezvous::FileStore store(options.gloo_store);
    context_ = std::make_shared<gloo::rendezvous::Context>(options.rank, options.world);
    context_->setTimeout(std::chrono::minutes(5));
    context_->connectFullMesh(store, device);
  }

  void Run(gloo::AllreduceOptions::Algorithm algorithm, std::vector<float>& values) {
    gloo::AllreduceOptions options(context_);
    options.setOutput(values.data(), values.size());
    options.setAlgorithm(algorithm);
    options.setReduceFunction([](void* out, const void* a, const void* b, size_t n) {
      gloo::sum<float>(static_cast<float*>(out), static_cast<const float*>(a),
                       static_cast<const float*>(b), n);
    });
    options.setTag(tag_++);
    gloo::allreduce(options);
  }

 private:
  std::shared_ptr<gloo::rendezvous::Context> context_;
  uint32_t tag_ = 0;
};

/// "BITS:LEVEL,LEVEL..." of the codec thc.
std::string ThcTable(int world) {
  const CodecSetting& setting = *FindSetting((*Codecs().Find("thc"))->Traits(), {}, world);
  std::vector<uint8_t> levels = setting.lane_levels;
  levels.resize(aggregation::kTableLevels, levels.back());
  std::string text = std::to_string(setting.bits);
  char separator = ':';
  for (const uint8_t level : levels) {
    text += separator;
    text += std::to_string(level);
    separator = ',';
  }
  return text;
}

// Sends this rank's addresses and receives those of all others.
void MeetAll(Channel& channel, const Options& options, const AggregatorPort& port,
             std::vector<std::unique_ptr<Mesh>>& meshes) {
  std::string hello = "hello " + std::to_string(options.rank);
  for (const auto& mesh : meshes) hello += " " + mesh->address();
  if (options.aggregator) hello += " " + ThcTable(options.world) + " " + port.address();
  channel.Send(hello);
  for (auto& mesh : meshes) {
    const std::vector<TransportAddress> addresses = channel.Receive();
    if (addresses.size() != static_cast<size_t>(options.world)) Die("no addresses of the others");
    mesh->Connect(addresses);
  }
}

/// Receives the plan that the script made for all ranks.
Plan ReceivePlan(Channel& channel, const Options& options) {
  const std::vector<std::string> words = channel.Receive();
  if (words.size() != 1) Die("expected a plan without blanks");
  StatusOr<Plan> plan = ParsePlan(words[0], UnknownKeys::kReject);
  if (plan.ok()) {
    const Status valid = ValidatePlan(*plan, {.job = {}, .world = options.world, .buckets = {}});
    if (!valid.ok()) plan = valid;
  }
  if (!plan.ok()) Die(ToString(plan.status()));
  return *std::move(plan);
}

void Main(const Options& options) {
  Channel channel(options.socket);
  AggregatorPort port({.rank = options.rank, .world = options.world, .failed = [](auto& detail) {
                         std::fprintf(stderr, "%s\n", detail.c_str());
                       }});
  if (options.aggregator) port.Bind(options.host + ":0");
  std::vector<std::unique_ptr<Mesh>> meshes;
  for (const std::string& name : options.transports)
    meshes.push_back(std::make_unique<Mesh>(name, options, meshes.size()));
  MeetAll(channel, options, port, meshes);
  Plan plan;
  if (options.aggregator) plan = ReceivePlan(channel, options);
  Gloo gloo(options);
  Thc thc(options.rank, options.world);
  std::vector<Contestant> contestants;
  for (auto& mesh : meshes) {
    for (const Collective* collective : Collectives().All()) {
      if (collective->Traits().form != "lanes") continue;
      contestants.push_back({mesh->name(), collective->Traits().name,
                             [collective, &mesh](auto& values) { mesh->Run(*collective, values); },
                             [&mesh] { mesh->Meet(); }});
    }
  }
  for (const auto& [name, lease] : plan.leases) {
    const Collective* through = *Collectives().Find(name);
    LaneOffload* offload = port.OffloadOf(plan, name);
    const bool table = through->Traits().form == "table_lanes";
    for (auto& mesh : meshes) {
      const auto run = [=, &mesh, &thc](std::vector<float>& values) {
        if (table) {
          thc.Run(*mesh, *through, values, offload);
        } else {
          mesh->Run(*through, values, offload);
        }
      };
      contestants.push_back(
          {mesh->name(), name, run, [&mesh] { mesh->Meet(); }, table ? thc.ErrorSquaredMax() : 0});
    }
  }
  using Algorithm = gloo::AllreduceOptions::Algorithm;
  for (const auto& [name, algorithm] :
       {std::pair{"gloo_ring", Algorithm::RING}, std::pair{"gloo_bcube", Algorithm::BCUBE}}) {
    contestants.push_back(
        {"tcp", name, [&gloo, algorithm = algorithm](auto& values) { gloo.Run(algorithm, values); },
         [&meshes] { meshes.front()->Meet(); }});
  }
  Serve(channel, options.rank, options.world, contestants);
}

}  // namespace
}  // namespace weir::bench

int main(int argc, char** argv) {
  if (argc != 10)
    weir::bench::Die("expected 9 arguments; tests/bench/collective_bench starts this");
  weir::bench::Options options;
  options.socket = argv[1];
  options.host = argv[4];
  options.gloo_store = argv[5];
  try {
    options.rank = std::stoi(argv[2]);
    options.world = std::stoi(argv[3]);
    std::istringstream names(argv[6]);
    for (std::string name; std::getline(names, name, ',');) options.transports.push_back(name);
    options.segment_bytes = std::stoull(argv[7]);
    options.buffer_bytes = std::stoi(argv[8]);
    options.aggregator = std::stoi(argv[9]) != 0;
    if (options.transports.empty()) weir::bench::Die("no transports");
    weir::bench::Main(options);
  } catch (const std::exception& error) {
    weir::bench::Die(error.what());  // Gloo throws
  }
  return 0;
}
