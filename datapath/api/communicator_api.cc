// SPDX-License-Identifier: Apache-2.0
// The C interface of Communicator.

#include <memory>

#include "datapath/api/c_support.h"
#include "datapath/api/request.h"
#include "datapath/api/weir.h"
#include "datapath/communicator/communicator.h"

struct weir_communicator : weir::c_api::Handle {
  std::unique_ptr<weir::Communicator> communicator;
};

namespace {

using weir::Communicator;
using weir::InvalidArgument;
using weir::OkStatus;
using weir::Status;
using weir::StatusOr;
using weir::StrCat;

template <typename Body>
weir_status Guard(const weir_communicator* communicator, Body&& body) noexcept {
  return weir::c_api::Guard(communicator, "communicator", body);
}

StatusOr<weir::CommunicatorOptions> ToOptions(const weir_communicator_options* given) {
  WEIR_ASSIGN_OR_RETURN(const weir_communicator_options c,
                        weir::c_api::ReadStruct(given, "options"));
  weir::CommunicatorOptions options;
  options.job = weir::c_api::Text(c.job, "");
  options.rank = c.rank;
  options.world = c.world;
  options.transport = weir::c_api::Text(c.transport, "auto");
  options.listen = weir::c_api::Text(c.listen, "127.0.0.1:0");
  WEIR_ASSIGN_OR_RETURN(options.operation_timeout,
                        weir::c_api::Timeout(c.operation_timeout_s, "operation_timeout_s", 60));
  WEIR_ASSIGN_OR_RETURN(options.connect_timeout,
                        weir::c_api::Timeout(c.connect_timeout_s, "connect_timeout_s", 60));
  WEIR_RETURN_IF_ERROR(weir::c_api::ReadSecurity(c, &options));
  return options;
}

StatusOr<weir::ElementType> ToType(int32_t dtype) {
  switch (dtype) {
    case WEIR_FLOAT32:
      return weir::ElementType::kFloat32;
    case WEIR_FLOAT16:
      return weir::ElementType::kFloat16;
    case WEIR_BFLOAT16:
      return weir::ElementType::kBrain16;
    case WEIR_FLOAT64:
      return weir::ElementType::kFloat64;
    case WEIR_INT8:
      return weir::ElementType::kInt8;
    case WEIR_UINT8:
      return weir::ElementType::kUint8;
    case WEIR_INT32:
      return weir::ElementType::kInt32;
    case WEIR_INT64:
      return weir::ElementType::kInt64;
  }
  return InvalidArgument(StrCat("dtype: expected 0..7, found ", dtype));
}

StatusOr<weir::ReduceOperation> ToReduction(int32_t reduction) {
  switch (reduction) {
    case WEIR_SUM:
      return weir::ReduceOperation::kSum;
    case WEIR_PRODUCT:
      return weir::ReduceOperation::kProduct;
    case WEIR_MIN:
      return weir::ReduceOperation::kMin;
    case WEIR_MAX:
      return weir::ReduceOperation::kMax;
    case WEIR_AVERAGE:
      return weir::ReduceOperation::kAverage;
  }
  return InvalidArgument(StrCat("reduction: expected 0..4, found ", reduction));
}

// `count` times `size` bytes. No memory has room for a product that overflows.
StatusOr<std::span<std::byte>> Buffer(const void* data, uint64_t count, uint64_t size,
                                      const char* name) {
  if (data == nullptr && count > 0) return InvalidArgument(StrCat(name, ": is null"));
  if (size > 0 && count > (uint64_t{1} << 62) / size) {
    return InvalidArgument(StrCat(name, ": no buffer has ", count, " times ", size, " bytes"));
  }
  // Inputs are only read, so casting constness away is safe.
  return std::span(static_cast<std::byte*>(const_cast<void*>(data)), count * size);
}

// Queues an operation by `submit`, with a completion that finishes a new request.
template <typename Submission>
weir_status Submit(weir_communicator* communicator, weir_request** request,
                   Submission&& submit) noexcept {
  if (request != nullptr) *request = nullptr;
  return Guard(communicator, [&]() -> Status {
    if (request == nullptr) return InvalidArgument("request: is null");
    return weir::c_api::Submit(communicator->id, request, [&](auto pending) -> Status {
      return submit(*communicator->communicator,
                    [pending = std::move(pending)](const Status& outcome, int peer) {
                      pending->Finish(outcome, peer);
                    });
    });
  });
}

using Runs = std::vector<std::span<std::byte>>;

StatusOr<Runs> ToRuns(const void* const* data, const uint64_t* bytes, int world, const char* name) {
  if (data == nullptr || bytes == nullptr) return InvalidArgument(StrCat(name, ": is null"));
  Runs runs;
  for (int r = 0; r < world; ++r) {
    WEIR_ASSIGN_OR_RETURN(const std::span<std::byte> run, Buffer(data[r], bytes[r], 1, name));
    runs.push_back(run);
  }
  return runs;
}

}  // namespace

extern "C" {

weir_status weir_communicator_create(const weir_communicator_options* options,
                                     weir_communicator** communicator, char* error,
                                     size_t error_size) {
  if (communicator != nullptr) *communicator = nullptr;
  const weir_status status = weir::c_api::Guard(0, [&]() -> Status {
    if (communicator == nullptr) return InvalidArgument("communicator: is null");
    WEIR_ASSIGN_OR_RETURN(weir::CommunicatorOptions converted, ToOptions(options));
    auto created = std::make_unique<weir_communicator>();
    WEIR_ASSIGN_OR_RETURN(created->communicator, Communicator::Create(std::move(converted)));
    *communicator = created.release();
    return OkStatus();
  });
  if (status != WEIR_OK) weir::c_api::CopyText(weir::c_api::Last().text, error, error_size);
  return status;
}

const char* weir_communicator_address(const weir_communicator* communicator) {
  const char* address = "";
  (void)Guard(communicator, [&] {
    address = communicator->communicator->address().c_str();
    return OkStatus();
  });
  return address;
}

weir_status weir_communicator_connect(weir_communicator* communicator, const char* const* addresses,
                                      int32_t count) {
  return Guard(communicator, [&]() -> Status {
    if (addresses == nullptr || count < 0) return InvalidArgument("addresses: is null");
    std::vector<std::string> list;
    for (int32_t i = 0; i < count; ++i) list.push_back(weir::c_api::Text(addresses[i], ""));
    return communicator->communicator->Connect(list);
  });
}

weir_status weir_communicator_interrupt_connect(weir_communicator* communicator) {
  return Guard(communicator, [&]() -> Status {
    communicator->communicator->InterruptConnect();
    return OkStatus();
  });
}

weir_status weir_communicator_shutdown(weir_communicator* communicator) {
  return Guard(communicator, [&]() -> Status {
    communicator->communicator->Close();
    return OkStatus();
  });
}

void weir_communicator_close(weir_communicator* communicator) {
  // A forked child must not close anything, because connections and memory also belong to its
  // parent.
  const weir_status closed = Guard(communicator, [&] {
    communicator->communicator->Close();
    weir::c_api::Requests().EraseAllOf(communicator->id);
    return OkStatus();
  });
  if (closed == WEIR_OK) delete communicator;
}

weir_status weir_communicator_all_reduce(weir_communicator* communicator, void* data,
                                         uint64_t count, int32_t dtype, int32_t reduction,
                                         weir_request** request) {
  return Submit(communicator, request, [&](Communicator& own, auto done) -> Status {
    WEIR_ASSIGN_OR_RETURN(const auto type, ToType(dtype));
    WEIR_ASSIGN_OR_RETURN(const auto reduce, ToReduction(reduction));
    WEIR_ASSIGN_OR_RETURN(const auto bytes, Buffer(data, count, ElementBytes(type), "data"));
    return own.AllReduce(bytes, type, reduce, std::move(done));
  });
}

weir_status weir_communicator_reduce(weir_communicator* communicator, void* data, uint64_t count,
                                     int32_t dtype, int32_t reduction, int32_t root,
                                     weir_request** request) {
  return Submit(communicator, request, [&](Communicator& own, auto done) -> Status {
    WEIR_ASSIGN_OR_RETURN(const auto type, ToType(dtype));
    WEIR_ASSIGN_OR_RETURN(const auto reduce, ToReduction(reduction));
    WEIR_ASSIGN_OR_RETURN(const auto bytes, Buffer(data, count, ElementBytes(type), "data"));
    return own.Reduce(bytes, type, reduce, root, std::move(done));
  });
}

weir_status weir_communicator_reduce_scatter(weir_communicator* communicator, const void* input,
                                             void* output, uint64_t count, int32_t dtype,
                                             int32_t reduction, weir_request** request) {
  return Submit(communicator, request, [&](Communicator& own, auto done) -> Status {
    WEIR_ASSIGN_OR_RETURN(const auto type, ToType(dtype));
    WEIR_ASSIGN_OR_RETURN(const auto reduce, ToReduction(reduction));
    WEIR_ASSIGN_OR_RETURN(const auto run, Buffer(output, count, ElementBytes(type), "output"));
    WEIR_ASSIGN_OR_RETURN(
        const auto all,
        Buffer(input, static_cast<uint64_t>(count > 0 ? own.world() : 0), run.size(), "input"));
    return own.ReduceScatter(all, run, type, reduce, std::move(done));
  });
}

weir_status weir_communicator_all_gather(weir_communicator* communicator, const void* input,
                                         void* output, uint64_t bytes, weir_request** request) {
  return Submit(communicator, request, [&](Communicator& own, auto done) -> Status {
    WEIR_ASSIGN_OR_RETURN(const auto run, Buffer(input, bytes, 1, "input"));
    WEIR_ASSIGN_OR_RETURN(
        const auto all,
        Buffer(output, static_cast<uint64_t>(bytes > 0 ? own.world() : 0), bytes, "output"));
    return own.AllGather(run, all, std::move(done));
  });
}

weir_status weir_communicator_broadcast(weir_communicator* communicator, void* data, uint64_t bytes,
                                        int32_t root, weir_request** request) {
  return Submit(communicator, request, [&](Communicator& own, auto done) -> Status {
    WEIR_ASSIGN_OR_RETURN(const auto buffer, Buffer(data, bytes, 1, "data"));
    return own.Broadcast(buffer, root, std::move(done));
  });
}

weir_status weir_communicator_all_to_all(weir_communicator* communicator,
                                         const void* const* outgoing,
                                         const uint64_t* outgoing_bytes, void* const* incoming,
                                         const uint64_t* incoming_bytes, weir_request** request) {
  return Submit(communicator, request, [&](Communicator& own, auto done) -> Status {
    WEIR_ASSIGN_OR_RETURN(const Runs from,
                          ToRuns(outgoing, outgoing_bytes, own.world(), "outgoing"));
    WEIR_ASSIGN_OR_RETURN(Runs to, ToRuns(incoming, incoming_bytes, own.world(), "incoming"));
    return own.AllToAll({from.begin(), from.end()}, std::move(to), std::move(done));
  });
}

weir_status weir_communicator_barrier(weir_communicator* communicator, weir_request** request) {
  return Submit(communicator, request,
                [&](Communicator& own, auto done) { return own.Barrier(std::move(done)); });
}

weir_status weir_communicator_send(weir_communicator* communicator, const void* data,
                                   uint64_t bytes, int32_t peer, uint64_t tag,
                                   weir_request** request) {
  return Submit(communicator, request, [&](Communicator& own, auto done) -> Status {
    WEIR_ASSIGN_OR_RETURN(const auto buffer, Buffer(data, bytes, 1, "data"));
    return own.Send(buffer, peer, tag, std::move(done));
  });
}

weir_status weir_communicator_receive(weir_communicator* communicator, void* data, uint64_t bytes,
                                      int32_t peer, uint64_t tag, weir_request** request) {
  return Submit(communicator, request, [&](Communicator& own, auto done) -> Status {
    WEIR_ASSIGN_OR_RETURN(const auto buffer, Buffer(data, bytes, 1, "data"));
    return own.Receive(buffer, peer, tag, std::move(done));
  });
}

const char* weir_communicator_last_error(const weir_communicator* communicator) {
  const weir::c_api::LastError& last = weir::c_api::Last();
  const uint64_t own = communicator == nullptr ? 0 : communicator->id;
  return last.owner == own ? last.text.c_str() : "";
}

}  // extern "C"
