// SPDX-License-Identifier: Apache-2.0
#include "datapath/communicator/communicator.h"

#include <xxhash.h>

#include <cstring>

#include "datapath/base/caught.h"
#include "datapath/base/check.h"
#include "datapath/collective/broadcast.h"
#include "datapath/collective/circulant.h"
#include "datapath/collective/collective.h"
#include "datapath/collective/staged_sum.h"
#include "datapath/transport/options.h"

namespace weir {
namespace {

constexpr size_t kDoublingBytesMax = 16 << 10;
constexpr size_t kCirculantBytesMax = 512 << 10;
constexpr size_t kWorkBytesKept = 16 << 20;
constexpr Duration kServeTurn = std::chrono::seconds(60);
constexpr uint64_t kMessagesJob = 0x6D65737361676573;

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

// The properties that must be equal on all ranks: kind, element type, operation or root, and size.
uint64_t Identity(uint64_t kind, uint64_t type, uint64_t detail, size_t bytes) {
  return kind << 60 | (type & 0xF) << 56 | (detail & 0xFFFF) << 40 |
         (static_cast<uint64_t>(bytes) & ((uint64_t{1} << 40) - 1));
}

void Copy(ConstBytes from, Bytes to) {
  if (!from.empty() && from.data() != to.data()) std::memmove(to.data(), from.data(), from.size());
}

Status CheckElements(ConstBytes data, ElementType type) {
  const size_t bytes = ElementBytes(type);
  if (data.size() % bytes != 0 || reinterpret_cast<uintptr_t>(data.data()) % bytes != 0) {
    return InvalidArgument(StrCat("data: expected whole, aligned elements of ", bytes,
                                  " bytes, found ", data.size(), " bytes at ",
                                  static_cast<const void*>(data.data())));
  }
  return OkStatus();
}

// Changes "host:29500" to "host:0", for the second transport.
std::string AnyPort(const std::string& listen) {
  const size_t colon = listen.rfind(':');
  return colon == std::string::npos ? listen : listen.substr(0, colon) + ":0";
}

StatusOr<std::unique_ptr<Transport>> Listen(const CommunicatorOptions& options,
                                            const TransportAddress& listen, uint64_t purpose) {
  TransportOptions transport;
  WEIR_ASSIGN_OR_RETURN(const TransportFactory* const factory,
                        ParseTransport(options.transport, &transport));
  transport.job = XXH3_64bits_withSeed(options.job.data(), options.job.size(), purpose);
  transport.rank = options.rank;
  transport.world = options.world;
  transport.listen = listen;
  transport.job_key = options.job_key;
  transport.encrypt = options.encrypt;
  transport.unauthenticated = options.unauthenticated;
  return factory->Create(transport);
}

Status AllReduceOn(Group& group, Bytes data, size_t lane_bytes, const Accumulate& accumulate) {
  Lanes lanes{data, lane_bytes, accumulate};
  if (CanStage(group, lanes)) return StagedAllReduce(group, lanes);
  const char* name = data.size() <= kDoublingBytesMax    ? "recursive_doubling"
                     : data.size() <= kCirculantBytesMax ? "halving_doubling"
                                                         : "ring";
  WEIR_ASSIGN_OR_RETURN(const Collective* const collective, Collectives().Find(name));
  return RunCollective(*collective, group, lanes).status();
}

// Rabenseifner's algorithm: each rank sums its part, and the root collects the parts. `work` is
// overwritten.
Status ReduceOn(Group& group, const Lanes& work, Bytes result, int root) {
  WEIR_RETURN_IF_ERROR(CirculantReduceScatter(group, work));
  const auto world = static_cast<size_t>(group.size());
  const Partition from(work.bytes, {.lane_bytes = work.lane_bytes, .parts = world});
  const Partition to(result, {.lane_bytes = work.lane_bytes, .parts = world});
  std::vector<ConstBytes> outgoing(world);
  std::vector<Bytes> incoming(world);
  if (group.rank() == root) {
    for (size_t r = 0; r < world; ++r) incoming[r] = to.Chunk(r);
    Copy(from.Chunk(static_cast<size_t>(root)), to.Chunk(static_cast<size_t>(root)));
  } else {
    outgoing[static_cast<size_t>(root)] = from.Chunk(static_cast<size_t>(group.rank()));
  }
  return DirectExchange(group, outgoing, incoming);
}

}  // namespace

StatusOr<std::unique_ptr<Communicator>> Communicator::Create(CommunicatorOptions options) {
  if (options.job.empty()) return InvalidArgument("job: expected a name, found none");
  if (options.world < 1 || options.world > kPointToPointWorldMax) {
    return InvalidArgument(
        StrCat("world: expected 1..", kPointToPointWorldMax, ", found ", options.world));
  }
  WEIR_ASSIGN_OR_RETURN(auto collectives, Listen(options, options.listen, 0));
  WEIR_ASSIGN_OR_RETURN(auto messages, Listen(options, AnyPort(options.listen), kMessagesJob));
  return std::unique_ptr<Communicator>(
      new Communicator(std::move(options), std::move(collectives), std::move(messages)));
}

Communicator::Communicator(CommunicatorOptions options, std::unique_ptr<Transport> collectives,
                           std::unique_ptr<Transport> messages)
    : options_(std::move(options)),
      no_memory_(ResourceExhausted(StrCat("rank ", options_.rank, " ran out of memory"))),
      collectives_(std::move(collectives)),
      messages_(std::move(messages)),
      address_(StrCat(collectives_->address(), ",", messages_->address())) {}

Communicator::~Communicator() { Close(); }

Status Communicator::Connect(const std::vector<std::string>& addresses) {
  if (connected_ || closing_.load()) {
    return FailedPrecondition("the communicator was connected before");
  }
  if (addresses.size() != static_cast<size_t>(world())) {
    return InvalidArgument(StrCat("addresses: expected one for each of ", world(), " ranks, found ",
                                  addresses.size()));
  }
  std::vector<TransportAddress> collectives, messages;
  for (const std::string& address : addresses) {
    const size_t comma = address.find(',');
    if (comma == std::string::npos) {
      return InvalidArgument(
          StrCat("addresses: expected two with a comma between, found \"", address, "\""));
    }
    collectives.push_back(address.substr(0, comma));
    messages.push_back(address.substr(comma + 1));
  }
  connected_ = true;  // wrong arguments can be corrected, a failed mesh cannot
  const TimePoint deadline = RealClock().Now() + options_.connect_timeout;
  WEIR_RETURN_IF_ERROR(collectives_->Connect(collectives, deadline));
  WEIR_RETURN_IF_ERROR(messages_->Connect(messages, deadline));
  point_to_point_ = std::make_unique<PointToPoint>(*messages_);
  collectives_thread_ = StartThread("weir-collective", [this] { RunCollectives(); });
  messages_thread_ = StartThread("weir-messages", [this] { RunMessages(); });
  open_.store(true);
  return OkStatus();
}

void Communicator::InterruptConnect() {
  collectives_->Interrupt();
  messages_->Interrupt();
}

void Communicator::Close() {
  if (closing_.exchange(true)) return;
  open_.store(false);
  queue_.Close();
  orders_.Close();
  collectives_->Interrupt();
  messages_->Wake();
  if (collectives_thread_.joinable()) collectives_thread_.join();
  if (messages_thread_.joinable()) messages_thread_.join();
  // The destructor of a transport sends the shutdown notice, which takes time, so it runs without
  // the mutex.
  std::unique_ptr<Transport> messages, collectives;
  {
    MutexLock lock(transports_mutex_);
    messages = std::move(messages_);
    collectives = std::move(collectives_);
  }
  messages.reset();
  collectives.reset();
  point_to_point_.reset();
}

uint64_t Communicator::bytes_sent() const {
  MutexLock lock(transports_mutex_);
  return collectives_ == nullptr ? 0 : collectives_->bytes_sent() + messages_->bytes_sent();
}

// ---- collectives

Status Communicator::Submit(Collective collective) {
  if (!open_.load()) return FailedPrecondition("the communicator is not connected");
  if (queue_.TryPush(std::move(collective))) return OkStatus();
  if (queue_.closed()) return FailedPrecondition("the communicator is closed");
  return ResourceExhausted(StrCat("more than ", kCollectivesQueued, " collectives wait"));
}

Status Communicator::Explain(Status failure, const Collective& failed, uint64_t sequence) const {
  if (!failure.ok() && closing_.load()) return Aborted("the communicator was closed");
  if (failure.code() == StatusCode::kInternal) {
    failure = Annotate(failure, "ranks called unlike collectives, or with unlike sizes");
  }
  return Annotate(failure, StrCat(failed.name, ", collective ", sequence));
}

void Communicator::RunCollectives() {
  Status failure;
  std::optional<Group> group;
  for (uint64_t sequence = 0;; ++sequence) {
    std::optional<Collective> next = queue_.Pop();
    if (!next.has_value()) return;
    if (failure.ok() && closing_.load()) failure = Aborted("the communicator was closed");
    if (failure.ok()) {
      // An exception destroys buffers while it propagates, and the transport still refers to them.
      bool returned = false;
      failure = Caught(
          [&] {
            if (!group.has_value()) group.emplace(*collectives_);
            group->Begin({.plan_version = 0, .op_sequence = sequence, .bucket = next->identity}, {},
                         0, RealClock().Now() + options_.operation_timeout);
            Status status = next->run(*group);
            returned = true;
            return status;
          },
          no_memory_);
      for (int attempt = 0; attempt < 2 && !returned; ++attempt) {
        returned = Caught([&] { collectives_->Abandon(Message(failure)); }).ok();
      }
      const Status explained = Caught([&] { return Explain(failure, *next, sequence); }, failure);
      failure = explained;
    }
    (void)Caught([&] { next->done(failure, -1); });
    if (failure.ok() && work_.capacity() > kWorkBytesKept) work_ = {};
  }
}

Status Communicator::CheckRank(int rank, const char* name) const {
  if (rank >= 0 && rank < world()) return OkStatus();
  return InvalidArgument(StrCat(name, ": expected 0..", world() - 1, ", found ", rank));
}

Status Communicator::AllReduce(Bytes data, ElementType type, ReduceOperation operation, Done done) {
  WEIR_RETURN_IF_ERROR(CheckElements(data, type));
  WEIR_ASSIGN_OR_RETURN(Accumulate accumulate, MakeAccumulate(type, operation));
  const auto run = [=, this](Group& group) -> Status {
    if (DividesFirst(type, operation)) Divide(type, data, world());
    WEIR_RETURN_IF_ERROR(AllReduceOn(group, data, ElementBytes(type), accumulate));
    if (DividesLast(type, operation)) Divide(type, data, world());
    return OkStatus();
  };
  return Submit({"all-reduce",
                 Identity(static_cast<uint64_t>(Kind::kAllReduce), static_cast<uint64_t>(type),
                          static_cast<uint64_t>(operation), data.size()),
                 run, std::move(done)});
}

Status Communicator::Reduce(Bytes data, ElementType type, ReduceOperation operation, int root,
                            Done done) {
  WEIR_RETURN_IF_ERROR(CheckElements(data, type));
  WEIR_RETURN_IF_ERROR(CheckRank(root, "root"));
  WEIR_ASSIGN_OR_RETURN(Accumulate accumulate, MakeAccumulate(type, operation));
  const auto run = [=, this](Group& group) -> Status {
    work_.assign(data.begin(), data.end());
    if (DividesFirst(type, operation)) Divide(type, work_, world());
    const Lanes lanes{work_, ElementBytes(type), accumulate};
    WEIR_RETURN_IF_ERROR(ReduceOn(group, lanes, data, root));
    if (DividesLast(type, operation) && rank() == root) Divide(type, data, world());
    return OkStatus();
  };
  const uint64_t detail = static_cast<uint64_t>(operation) << 12 | static_cast<uint64_t>(root);
  return Submit({"reduce",
                 Identity(static_cast<uint64_t>(Kind::kReduce), static_cast<uint64_t>(type), detail,
                          data.size()),
                 run, std::move(done)});
}

Status Communicator::ReduceScatter(ConstBytes all, Bytes own, ElementType type,
                                   ReduceOperation operation, Done done) {
  WEIR_RETURN_IF_ERROR(CheckElements(all, type));
  WEIR_RETURN_IF_ERROR(CheckElements(own, type));
  if (all.size() != own.size() * static_cast<size_t>(world())) {
    return InvalidArgument(StrCat("input: expected ", world(), " runs of ", own.size(),
                                  " bytes, found ", all.size(), " bytes"));
  }
  WEIR_ASSIGN_OR_RETURN(Accumulate accumulate, MakeAccumulate(type, operation));
  const auto run = [=, this](Group& group) -> Status {
    work_.assign(all.begin(), all.end());
    if (DividesFirst(type, operation)) Divide(type, work_, world());
    const Lanes lanes{work_, ElementBytes(type), accumulate};
    WEIR_RETURN_IF_ERROR(CirculantReduceScatter(group, lanes));
    Copy(Bytes(work_).subspan(static_cast<size_t>(rank()) * own.size(), own.size()), own);
    if (DividesLast(type, operation)) Divide(type, own, world());
    return OkStatus();
  };
  return Submit({"reduce-scatter",
                 Identity(static_cast<uint64_t>(Kind::kReduceScatter), static_cast<uint64_t>(type),
                          static_cast<uint64_t>(operation), own.size()),
                 run, std::move(done)});
}

Status Communicator::AllGather(ConstBytes own, Bytes all, Done done) {
  if (all.size() != own.size() * static_cast<size_t>(world())) {
    return InvalidArgument(StrCat("output: expected ", world(), " runs of ", own.size(),
                                  " bytes, found ", all.size(), " bytes"));
  }
  const auto run = [=, this](Group& group) -> Status {
    if (own.empty()) return DisseminationBarrier(group);  // fails if sizes differ
    Copy(own, all.subspan(static_cast<size_t>(rank()) * own.size(), own.size()));
    return CirculantAllGather(group, all, own.size());
  };
  return Submit({"all-gather", Identity(static_cast<uint64_t>(Kind::kAllGather), 0, 0, own.size()),
                 run, std::move(done)});
}

Status Communicator::Broadcast(Bytes data, int root, Done done) {
  WEIR_RETURN_IF_ERROR(CheckRank(root, "root"));
  const auto run = [=](Group& group) {
    return data.empty() ? DisseminationBarrier(group) : weir::Broadcast(group, root, data);
  };
  return Submit({"broadcast",
                 Identity(static_cast<uint64_t>(Kind::kBroadcast), 0, static_cast<uint64_t>(root),
                          data.size()),
                 run, std::move(done)});
}

Status Communicator::AllToAll(std::vector<ConstBytes> outgoing, std::vector<Bytes> incoming,
                              Done done) {
  const auto count = static_cast<size_t>(world()), own = static_cast<size_t>(rank());
  if (outgoing.size() != count || incoming.size() != count) {
    return InvalidArgument(StrCat("expected ", count, " runs each way, found ", outgoing.size(),
                                  " and ", incoming.size()));
  }
  if (outgoing[own].size() != incoming[own].size()) {
    return InvalidArgument(StrCat("run ", own, ": a rank sends itself ", outgoing[own].size(),
                                  " bytes and expects ", incoming[own].size()));
  }
  const auto run = [outgoing = std::move(outgoing), incoming = std::move(incoming),
                    own](Group& group) {
    Copy(outgoing[own], incoming[own]);
    return DirectExchange(group, outgoing, incoming);
  };
  return Submit({"all-to-all", Identity(static_cast<uint64_t>(Kind::kAllToAll), 0, 0, 0), run,
                 std::move(done)});
}

Status Communicator::Barrier(Done done) {
  return Submit({"barrier", Identity(static_cast<uint64_t>(Kind::kBarrier), 0, 0, 0),
                 [](Group& group) { return DisseminationBarrier(group); }, std::move(done)});
}

// ---- messages

Status Communicator::SubmitMessage(bool sends, PointToPointMessage message) {
  if (!open_.load()) return FailedPrecondition("the communicator is not connected");
  if (sends || message.peer != kAnyRank) WEIR_RETURN_IF_ERROR(CheckRank(message.peer, "peer"));
  if (message.peer == rank()) {
    return InvalidArgument(StrCat("peer: expected another rank, found the own one, ", rank()));
  }
  message.timeout = options_.operation_timeout;
  if (!orders_.TryPush({sends, std::move(message)})) {
    return ResourceExhausted(StrCat("more than ", kMessagesMax, " messages wait"));
  }
  MutexLock lock(transports_mutex_);
  if (messages_ != nullptr) messages_->Wake();
  return OkStatus();
}

Status Communicator::Send(ConstBytes data, int peer, uint64_t tag, Done done) {
  // Sends only read the data; one type of message serves both directions.
  const Bytes bytes(const_cast<std::byte*>(data.data()), data.size());
  return SubmitMessage(
      true, {.peer = peer, .tag = tag, .bytes = bytes, .timeout = {}, .done = std::move(done)});
}

Status Communicator::Receive(Bytes data, int peer, uint64_t tag, Done done) {
  return SubmitMessage(
      false, {.peer = peer, .tag = tag, .bytes = data, .timeout = {}, .done = std::move(done)});
}

void Communicator::RunMessages() {
  while (!closing_.load() && point_to_point_->failure().ok()) {
    const Status turn = Caught([this] { ServeMessages(); }, no_memory_);
    for (int attempt = 0; attempt < 2 && !turn.ok(); ++attempt) {
      if (Caught([&] { point_to_point_->Abandon(turn); }).ok()) break;
    }
  }
  (void)Caught([this] { point_to_point_->Leave(); });
  // Operations submitted after a failure get its error, until Close is called.
  while (std::optional<Order> order = orders_.Pop()) {
    (void)Caught([&] { order->message.done(point_to_point_->failure(), order->message.peer); });
  }
}

void Communicator::ServeMessages() {
  while (std::optional<Order> order = orders_.TryPop()) {
    if (order->sends) {
      point_to_point_->Send(std::move(order->message));
    } else {
      point_to_point_->Receive(std::move(order->message));
    }
  }
  (void)point_to_point_->Serve(RealClock().Now() + kServeTurn);
}

}  // namespace weir
