// SPDX-License-Identifier: Apache-2.0
// The C interface of Session. No exception crosses it, and every argument is checked.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "datapath/agent_link/agent_protocol.h"
#include "datapath/api/c_support.h"
#include "datapath/api/devices.h"
#include "datapath/api/request.h"
#include "datapath/api/weir.h"
#include "datapath/base/mutex.h"
#include "datapath/base/version.h"
#include "datapath/session/session.h"

struct weir_session : weir::c_api::Handle {
  mutable weir::Mutex mutex;
  // weir_session_reform replaces it while thread-safe calls may still use it.
  std::shared_ptr<weir::Session> session WEIR_GUARDED_BY(mutex);

  std::shared_ptr<weir::Session> current() const {
    weir::MutexLock lock(mutex);
    return session;
  }
};

namespace {

using weir::InvalidArgument;
using weir::OkStatus;
using weir::Status;
using weir::StatusOr;
using weir::StrCat;

using weir::c_api::Completion;
using weir::c_api::CopyText;
using weir::c_api::ReadStruct;
using weir::c_api::Text;
using weir::c_api::Timeout;
using weir::c_api::ToC;

template <typename Body>
weir_status Guard(const weir_session* session, Body&& body) noexcept {
  return weir::c_api::Guard(session, "session", body);
}

StatusOr<std::map<std::string, std::string>> ToLabels(const std::string& text) {
  std::map<std::string, std::string> labels;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string label = text.substr(begin, end - begin);
    const size_t equals = label.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == label.size() ||
        !labels.emplace(label.substr(0, equals), label.substr(equals + 1)).second) {
      return InvalidArgument(
          StrCat("labels: expected KEY=VALUE, each key once, found '", label.substr(0, 100), "'"));
    }
    begin = end + 1;
  }
  if (labels.size() > weir::kJobLabelsMax) {
    return InvalidArgument(
        StrCat("labels: expected at most ", weir::kJobLabelsMax, ", found ", labels.size()));
  }
  return labels;
}

StatusOr<weir::SessionOptions> ToOptions(const weir_options* given) {
  WEIR_ASSIGN_OR_RETURN(const weir_options c, ReadStruct(given, "options"));
  weir::SessionOptions options;
  options.job = Text(c.job, "");
  WEIR_ASSIGN_OR_RETURN(options.labels, ToLabels(Text(c.labels, "")));
  options.rank = c.rank;
  options.world = c.world;
  options.transport = Text(c.transport, "auto");
  options.listen = Text(c.listen, "127.0.0.1:0");
  options.agent = Text(c.agent, "");
  options.agent_token = Text(c.agent_token, "");
  options.plan_file = Text(c.plan_file, "");
  options.measure_codecs = true;
  WEIR_ASSIGN_OR_RETURN(options.operation_timeout,
                        Timeout(c.operation_timeout_s, "operation_timeout_s", 60));
  WEIR_ASSIGN_OR_RETURN(options.connect_timeout,
                        Timeout(c.connect_timeout_s, "connect_timeout_s", 60));
  WEIR_ASSIGN_OR_RETURN(options.operation_timeout_floor,
                        Timeout(c.operation_timeout_floor_s, "operation_timeout_floor_s", 10));
  options.epoch = c.epoch;
  if (c.compare_every_steps != 0) {
    options.compare_every_steps = static_cast<uint64_t>(std::max(c.compare_every_steps, 0));
  }
  if (c.gradient_device != nullptr) {
    WEIR_ASSIGN_OR_RETURN(options.device, weir::c_api::FindDevice(*c.gradient_device));
  }
  if (c.encode_workers != 0) options.encode_workers = c.encode_workers;
  options.local_steps = c.local_steps != 0;
  options.caller_sums = c.caller_sums != 0;
  WEIR_RETURN_IF_ERROR(weir::c_api::ReadSecurity(c, &options));
  return options;
}

StatusOr<weir::Dtype> ToDtype(int32_t dtype) {
  switch (dtype) {
    case WEIR_FLOAT32:
      return weir::Dtype::kFloat32;
    case WEIR_FLOAT16:
      return weir::Dtype::kFloat16;
    case WEIR_BFLOAT16:
      return weir::Dtype::kBrain16;
  }
  return InvalidArgument(StrCat("dtype: expected 0..2, found ", dtype));
}

Status AllReduce(weir_session* session, uint64_t bucket, void* data, double scale,
                 weir_callback callback, void* context, weir_request** request,
                 weir::DevicePlace place = {}) {
  const std::shared_ptr<weir::Session> current = session->current();
  const auto submit = [&](std::shared_ptr<Completion> pending) {
    return current->AllReduce(
        bucket, data, scale,
        [callback, context, pending = std::move(pending)](const Status& outcome) {
          // A callback in C++ may throw; its operation has ended nevertheless.
          if (callback != nullptr) (void)weir::Caught([&] { callback(context, ToC(outcome)); });
          if (pending != nullptr) pending->Finish(outcome, WEIR_ANY_RANK);
        },
        place);
  };
  return current->OrFail([&] { return weir::c_api::Submit(session->id, request, submit); });
}

}  // namespace

extern "C" {

weir_status weir_session_create(const weir_options* options, weir_session** session, char* error,
                                size_t error_size) {
  if (session != nullptr) *session = nullptr;
  const weir_status status = weir::c_api::Guard(0, [&]() -> Status {
    if (session == nullptr) return InvalidArgument("session: is null");
    WEIR_ASSIGN_OR_RETURN(weir::SessionOptions converted, ToOptions(options));
    auto created = std::make_unique<weir_session>();
    WEIR_ASSIGN_OR_RETURN(std::shared_ptr<weir::Session> made,
                          weir::Session::Create(std::move(converted)));
    {
      weir::MutexLock lock(created->mutex);
      created->session = std::move(made);
    }
    *session = created.release();
    return OkStatus();
  });
  if (status != WEIR_OK) CopyText(weir::c_api::Last().text, error, error_size);
  return status;
}

const char* weir_session_address(const weir_session* session) {
  const char* address = "";
  (void)Guard(session, [&] {
    address = session->current()->address().c_str();
    return OkStatus();
  });
  return address;
}

weir_status weir_session_connect(weir_session* session, const char* const* addresses,
                                 int32_t count) {
  return Guard(session, [&]() -> Status {
    if (addresses == nullptr || count < 0) return InvalidArgument("addresses: is null");
    std::vector<weir::TransportAddress> list;
    for (int32_t i = 0; i < count; ++i) list.push_back(Text(addresses[i], ""));
    return session->current()->Connect(list);
  });
}

weir_status weir_session_interrupt_connect(weir_session* session) {
  return Guard(session, [&]() -> Status {
    session->current()->InterruptConnect();
    return OkStatus();
  });
}

weir_status weir_session_reform(weir_session* session, const weir_mesh* mesh) {
  return Guard(session, [&]() -> Status {
    WEIR_ASSIGN_OR_RETURN(const weir_mesh c, ReadStruct(mesh, "mesh"));
    const std::shared_ptr<weir::Session> former = session->current();
    weir::SessionOptions options = former->options();
    if (c.epoch <= options.epoch) {
      return InvalidArgument(
          StrCat("mesh.epoch: expected above ", options.epoch, ", found ", c.epoch));
    }
    options.epoch = c.epoch;
    options.rank = c.rank;
    options.world = c.world;
    options.listen = Text(c.listen, options.listen.c_str());
    options.caller_sums = false;
    WEIR_RETURN_IF_ERROR(weir::Session::CheckOptions(options));
    former->Close();
    weir::SessionParts parts;
    parts.former = former.get();
    WEIR_ASSIGN_OR_RETURN(std::shared_ptr<weir::Session> made,
                          weir::Session::Create(std::move(options), std::move(parts)));
    weir::MutexLock lock(session->mutex);
    session->session = std::move(made);
    return OkStatus();
  });
}

void weir_session_close(weir_session* session) {
  // A forked child must not close anything, because connections and memory also belong to its
  // parent.
  const weir_status closed = Guard(session, [&] {
    session->current()->Close();
    weir::c_api::Requests().EraseAllOf(session->id);
    return OkStatus();
  });
  if (closed == WEIR_OK) delete session;
}

weir_status weir_define_bucket(weir_session* session, const weir_parameter* parameters,
                               size_t count, int32_t dtype, uint64_t* key) {
  return Guard(session, [&]() -> Status {
    if (parameters == nullptr && count > 0) return InvalidArgument("parameters: is null");
    if (key == nullptr) return InvalidArgument("key: is null");
    WEIR_ASSIGN_OR_RETURN(const weir::Dtype converted, ToDtype(dtype));
    std::vector<weir::ResidualParameter> list(count);
    for (size_t i = 0; i < count; ++i) {
      list[i].name = Text(parameters[i].name, "");
      list[i].elements = parameters[i].elements;
      list[i].columns = parameters[i].columns;
    }
    WEIR_ASSIGN_OR_RETURN(*key, session->current()->DefineBucket(std::move(list), converted));
    return OkStatus();
  });
}

weir_status weir_step_begin(weir_session* session) {
  return Guard(session, [&] { return session->current()->BeginStep(); });
}

weir_status weir_step_end(weir_session* session, int32_t* skipped) {
  return Guard(session, [&]() -> Status {
    WEIR_ASSIGN_OR_RETURN(const bool was_skipped, session->current()->EndStep());
    if (skipped != nullptr) *skipped = was_skipped ? 1 : 0;
    return OkStatus();
  });
}

weir_status weir_all_reduce(weir_session* session, uint64_t bucket, void* data, double scale,
                            weir_callback callback, void* context, weir_request** request) {
  return Guard(session,
               [&] { return AllReduce(session, bucket, data, scale, callback, context, request); });
}

int32_t weir_device_count(void) {
  int count = 0;
  (void)weir::Caught([&] { count = weir::c_api::DeviceCount(); });
  return count;
}

weir_status weir_all_reduce_device(weir_session* session, uint64_t bucket,
                                   const weir_device_data* data, double scale,
                                   weir_callback callback, void* context, weir_request** request) {
  return Guard(session, [&]() -> Status {
    WEIR_ASSIGN_OR_RETURN(const weir_device_data c, ReadStruct(data, "data"));
    WEIR_ASSIGN_OR_RETURN(weir::Device* const device, weir::c_api::FindDevice(c.device));
    return AllReduce(session, bucket, c.data, scale, callback, context, request,
                     {.device = device, .stream = c.stream});
  });
}

weir_status weir_set_sharded(weir_session* session, uint64_t bucket) {
  return Guard(session, [&] { return session->current()->SetSharded(bucket); });
}

weir_status weir_caller_sum_needs(weir_session* session, uint64_t bucket, int32_t* needs) {
  return Guard(session, [&]() -> Status {
    if (needs == nullptr) return InvalidArgument("needs: is null");
    WEIR_ASSIGN_OR_RETURN(const weir::CallerSumNeeds wanted, session->current()->NeedsOf(bucket));
    *needs = (wanted.by_caller ? WEIR_CALLER_SUMS : 0) |
             (wanted.residual ? WEIR_NEEDS_RESIDUAL : 0) | (wanted.sample ? WEIR_NEEDS_SAMPLE : 0) |
             (wanted.hash ? WEIR_NEEDS_SUM : 0);
    return OkStatus();
  });
}

weir_status weir_caller_sum_begin(weir_session* session, uint64_t bucket, void* data,
                                  weir_request** request) {
  return Guard(session, [&]() -> Status {
    const std::shared_ptr<weir::Session> current = session->current();
    const auto begin = [&](std::shared_ptr<Completion> pending) {
      return current->BeginSum(bucket, data, [pending = std::move(pending)](const Status& outcome) {
        if (pending != nullptr) pending->Finish(outcome, WEIR_ANY_RANK);
      });
    };
    return current->OrFail([&] { return weir::c_api::Submit(session->id, request, begin); });
  });
}

weir_status weir_caller_sum_end(weir_session* session, uint64_t bucket,
                                const weir_caller_sum* sum) {
  return Guard(session, [&]() -> Status {
    WEIR_ASSIGN_OR_RETURN(const weir_caller_sum c, ReadStruct(sum, "sum"));
    if (!(c.network_s >= 0) || !(c.since_ready_s >= 0) || !(c.ended_ago_s >= 0)) {
      return InvalidArgument(
          "network_s, since_ready_s, ended_ago_s: expected seconds of at least 0");
    }
    weir::CallerSum ended;
    ended.finite = c.finite != 0;
    ended.sum = c.sum;
    if (c.error != nullptr) ended.status = weir::Aborted(c.error);
    ended.network = weir::FromSeconds(std::min(c.network_s, 1e6));
    ended.since_ready = weir::FromSeconds(std::min(c.since_ready_s, 1e6));
    ended.ended_ago = weir::FromSeconds(std::min(c.ended_ago_s, 1e6));
    return session->current()->EndSum(bucket, ended);
  });
}

weir_status weir_report_parameters(weir_session* session, const void* const* data,
                                   const uint64_t* bytes, size_t count) {
  return Guard(session, [&]() -> Status {
    if ((data == nullptr || bytes == nullptr) && count > 0) {
      return InvalidArgument("data or bytes: is null");
    }
    const std::shared_ptr<weir::Session> current = session->current();
    if (!current->compares()) return OkStatus();
    std::vector<uint64_t> hashes;
    for (size_t i = 0; i < count; ++i) {
      if (data[i] == nullptr && bytes[i] > 0) {
        return InvalidArgument(StrCat("data[", i, "]: is null"));
      }
      hashes.push_back(weir::HashBytes({static_cast<const std::byte*>(data[i]), bytes[i]}));
    }
    current->ReportParameters(weir::HashBytes(std::as_bytes(std::span(hashes))));
    return OkStatus();
  });
}

weir_status weir_report_loss(weir_session* session, double loss) {
  return Guard(session, [&] {
    session->current()->ReportLoss(loss);
    return OkStatus();
  });
}

weir_status weir_report_period(weir_session* session, const weir_period* period) {
  return Guard(session, [&]() -> Status {
    if (period == nullptr) return InvalidArgument("period: is null");
    weir_period read = {};
    std::memcpy(&read, period, std::min(sizeof read, period->struct_size));
    return session->current()->ReportPeriod({.steps = read.steps,
                                             .overlap_steps = read.overlap_steps,
                                             .waited_s = read.waited_s,
                                             .moved_square = read.moved_square,
                                             .mean_square = read.mean_square});
  });
}

weir_status weir_report_non_finite(weir_session* session, const char* parameter) {
  return Guard(session, [&]() -> Status {
    if (parameter == nullptr) return InvalidArgument("parameter: is null");
    return session->current()->ReportNonFinite(parameter);
  });
}

weir_status weir_export_state(weir_session* session, void* buffer, size_t* size) {
  return Guard(session, [&]() -> Status {
    if (size == nullptr) return InvalidArgument("size: is null");
    if (buffer == nullptr) {
      WEIR_ASSIGN_OR_RETURN(*size, session->current()->ExportBytes());
      return OkStatus();
    }
    WEIR_ASSIGN_OR_RETURN(
        *size, session->current()->ExportState({static_cast<std::byte*>(buffer), *size}));
    return OkStatus();
  });
}

weir_status weir_import_state(weir_session* session, const void* buffer, size_t size) {
  return Guard(session, [&]() -> Status {
    if (buffer == nullptr) return InvalidArgument("buffer: is null");
    return session->current()->ImportState({static_cast<const std::byte*>(buffer), size});
  });
}

weir_status weir_scale_state(weir_session* session, double factor) {
  return Guard(session, [&] { return session->current()->ScaleState(factor); });
}

weir_status weir_get_stats(weir_session* session, weir_stats* stats) {
  return Guard(session, [&]() -> Status {
    WEIR_ASSIGN_OR_RETURN(weir_stats out, ReadStruct(stats, "stats"));
    const weir::SessionStats now = session->current()->Stats();
    out.step = now.step;
    out.plan_version = now.plan_version;
    out.bytes_sent = now.bytes_sent;
    out.steps_skipped = now.steps_skipped;
    out.agent_connected = now.agent_connected ? 1 : 0;
    out.last_step_s = now.last_step_s;
    out.last_exposed_s = now.last_exposed_s;
    out.peers_shared_memory = now.peers_shared_memory;
    out.model_source = now.model_source;
    out.epoch = now.epoch;
    out.next_step = now.next_step;
    out.replicas_compared = now.replicas_compared;
    out.unauthenticated_peers = now.unauthenticated_peers;
    std::memcpy(stats, &out, std::min(sizeof out, stats->struct_size));
    return OkStatus();
  });
}

weir_status weir_get_plan(weir_session* session, char* buffer, size_t* size) {
  return Guard(session, [&]() -> Status {
    if (size == nullptr) return InvalidArgument("size: is null");
    const std::string text = weir::PlanToJson(*session->current()->ActivePlan());
    const size_t capacity = buffer == nullptr ? 0 : *size;
    *size = text.size();
    if (capacity < text.size() + 1) {
      return weir::ResourceExhausted(
          StrCat("buffer: expected at least ", text.size() + 1, " bytes, found ", capacity));
    }
    CopyText(text, buffer, capacity);
    return OkStatus();
  });
}

const char* weir_strerror(int32_t status) {
  switch (status) {
    case WEIR_OK:
      return "ok";
    case WEIR_INVALID_ARGUMENT:
      return "invalid argument";
    case WEIR_NOT_FOUND:
      return "not found";
    case WEIR_FAILED_PRECONDITION:
      return "failed precondition";
    case WEIR_DATA_LOSS:
      return "data loss";
    case WEIR_PEER_UNAVAILABLE:
      return "peer unavailable";
    case WEIR_DEADLINE_EXCEEDED:
      return "deadline exceeded";
    case WEIR_RESOURCE_EXHAUSTED:
      return "resource exhausted";
    case WEIR_ABORTED:
      return "aborted";
    case WEIR_INTERNAL:
      return "internal error";
  }
  return "unknown status";
}

const char* weir_last_error(const weir_session* session) {
  try {
    weir::c_api::LastError& last_error = weir::c_api::Last();
    if (session == nullptr || last_error.owner == session->id || session->process != getpid()) {
      return last_error.text.c_str();
    }
    // No call failed on this thread, but an operation may have failed on a thread of the session.
    last_error.owner = 0;
    last_error.text = weir::Message(session->current()->failure());
    return last_error.text.c_str();
  } catch (...) {
    return "out of memory";
  }
}

const char* weir_version(void) { return weir::kLibraryVersion; }

const char* weir_capabilities(void) {
  try {
    return weir::CapabilitiesJson().c_str();
  } catch (...) {
    return "{}";
  }
}

}  // extern "C"
