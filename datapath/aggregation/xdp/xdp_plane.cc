// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/xdp/xdp_plane.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "datapath/aggregation/xdp/kernel_maps.h"
#include "datapath/aggregation/xdp/program_object.h"
#include "datapath/aggregation/xdp/reply.h"

namespace weir::aggregation {
namespace {

constexpr int kRepliesMax = 4096;  // per call of SendReplies
constexpr size_t kLogLinesMax = 8;
constexpr size_t kLogBytesMax = 1 << 16;

// libbpf reports errors through one function per process; this gives each call the text of its own
// thread.
thread_local std::string* log_of_call = nullptr;

int KeepLog(enum libbpf_print_level level, const char* format, va_list arguments) {
  if (log_of_call == nullptr || level == LIBBPF_DEBUG) return 0;
  std::array<char, 4096> line = {};
  const int size = std::vsnprintf(line.data(), line.size(), format, arguments);
  log_of_call->append(line.data(), std::min(line.size() - 1, static_cast<size_t>(size)));
  if (log_of_call->size() > kLogBytesMax) {
    log_of_call->erase(0, log_of_call->size() - kLogBytesMax / 2);
  }
  return size;
}

class LogScope {
 public:
  LogScope() {
    libbpf_set_print(KeepLog);
    log_of_call = &log_;
  }
  ~LogScope() { log_of_call = nullptr; }

  /// Joins the last lines of the log.
  std::string Tail() const {
    std::vector<std::string> lines;
    size_t at = 0;
    while (at < log_.size()) {
      const size_t end = std::min(log_.find('\n', at), log_.size());
      if (end > at) lines.push_back(log_.substr(at, end - at));
      at = end + 1;
    }
    std::string tail;
    for (size_t i = lines.size() - std::min(lines.size(), kLogLinesMax); i < lines.size(); ++i) {
      tail += (tail.empty() ? "" : "; ") + lines[i];
    }
    return tail;
  }

 private:
  std::string log_;
};

// code: a negative errno, as libbpf returns it.
Status Refused(std::string_view what, int code, const std::string& log) {
  std::string text = StrCat("xdp: cannot ", what, ": ", std::strerror(-code));
  if (code == -EPERM || code == -EACCES) {
    text += " (expected root, or the capabilities CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON)";
  }
  if (!log.empty()) text += "; " + log;
  return Unavailable(text);
}

template <typename T>
T FromWire(std::span<const std::byte> octets, size_t at) {
  T value;
  std::memcpy(&value, octets.data() + at, sizeof value);
  return value;
}

weir_xdp_lease KernelLease(const Lease& lease, const SlotRange& range, uint64_t generation,
                           SourceAddress aggregator) {
  std::array<std::byte, kPacketHeaderBytes> header;
  EncodePacketHeader(RequestHeader(lease), header);
  weir_xdp_lease out = {};
  out.terms.generation = generation;
  out.terms.first_slot = range.first;
  out.terms.slots = range.count;
  out.terms.address = __builtin_bswap32(static_cast<uint32_t>(aggregator >> 16));
  out.terms.port = __builtin_bswap16(static_cast<uint16_t>(aggregator));
  out.terms.epoch = FromWire<uint32_t>(header, 8);
  out.terms.cookie[0] = FromWire<uint32_t>(header, 12);
  out.terms.cookie[1] = FromWire<uint32_t>(header, 16);
  out.terms.lanes_wire = FromWire<uint16_t>(header, 22);
  out.terms.lanes = lease.lanes;
  out.terms.mode = static_cast<uint8_t>(lease.mode);
  out.terms.workers = static_cast<uint8_t>(lease.workers);
  out.terms.sum_bits = static_cast<uint8_t>(lease.sum_bits);
  out.terms.little_endian = lease.little_endian ? 1 : 0;
  if (lease.mode == PacketMode::kTable) {
    for (uint32_t octet = 0; octet < WEIR_XDP_PAIRS; ++octet) {
      const uint32_t even = lease.levels[octet >> 4], odd = lease.levels[octet & 15];
      out.pairs[octet] = even | odd << lease.sum_bits;
    }
  }
  return out;
}

}  // namespace

StatusOr<XdpAttachMode> ParseXdpAttachMode(std::string_view name) {
  if (name == "any") return XdpAttachMode::kAny;
  if (name == "native") return XdpAttachMode::kNative;
  if (name == "generic") return XdpAttachMode::kGeneric;
  return InvalidArgument(
      StrCat("xdp mode: expected any, native or generic, found '", name.substr(0, 60), "'"));
}

void XdpPlane::ObjectDeleter::operator()(bpf_object* object) const { bpf_object__close(object); }
void XdpPlane::RingDeleter::operator()(ring_buffer* ring) const { ring_buffer__free(ring); }

StatusOr<std::unique_ptr<XdpPlane>> XdpPlane::Load(const XdpPlaneOptions& options) {
  const uint32_t ring = options.ring_bytes;
  if (ring < 4096 || (ring & (ring - 1)) != 0) {
    return InvalidArgument(StrCat("xdp ring: expected a power of two from 4096 on, found ", ring));
  }
  const LogScope log;
  std::unique_ptr<XdpPlane> plane(new XdpPlane(options.limits));
  const std::span<const std::byte> program = XdpProgramObject();
  bpf_object_open_opts open = {};
  open.sz = sizeof open;
  open.object_name = "weir_aggregate";
  plane->object_.reset(bpf_object__open_mem(program.data(), program.size(), &open));
  if (plane->object_ == nullptr) return Refused("read its program", -errno, log.Tail());
  bpf_object* object = plane->object_.get();
  const std::pair<const char*, uint32_t> sizes[] = {
      {"leases", options.limits.leases},
      // The workers of a new grant are added before those of the previous epoch are removed.
      {"senders", (options.limits.leases + 1) * static_cast<uint32_t>(kWorkersMax)},
      {"slots", options.limits.slots},
      {"requests", ring}};
  for (const auto& [name, entries] : sizes) {
    bpf_map* map = bpf_object__find_map_by_name(object, name);
    const int code = map == nullptr ? -ENOENT : bpf_map__set_max_entries(map, entries);
    if (code != 0) return Refused(StrCat("size the map ", name), code, log.Tail());
  }
  if (const int code = bpf_object__load(object); code != 0) {
    return Refused("load its program into the kernel", code, log.Tail());
  }
  WEIR_RETURN_IF_ERROR(plane->FindMaps());
  const int requests = bpf_object__find_map_fd_by_name(object, "requests");
  plane->ring_.reset(ring_buffer__new(requests, OnRequest, plane.get(), nullptr));
  if (plane->ring_ == nullptr) return Refused("map its ring", -errno, log.Tail());
  return plane;
}

Status XdpPlane::FindMaps() {
  const std::pair<const char*, int*> maps[] = {{"leases", &leases_fd_},
                                               {"senders", &senders_fd_},
                                               {"slots", &slots_fd_},
                                               {"counters", &counters_fd_}};
  for (const auto& [name, fd] : maps) {
    *fd = bpf_object__find_map_fd_by_name(object_.get(), name);
    if (*fd < 0) return Internal(StrCat("xdp: its program has no map ", name));
  }
  const bpf_program* program = bpf_object__find_program_by_name(object_.get(), "weir_aggregate");
  program_ = program == nullptr ? -1 : bpf_program__fd(program);
  return program_ < 0 ? Internal("xdp: its object has no program weir_aggregate") : OkStatus();
}

XdpPlane::~XdpPlane() = default;

Status XdpPlane::Attach(const std::string& interface, XdpAttachMode mode) {
  const unsigned index = if_nametoindex(interface.c_str());
  if (index == 0) return NotFound(StrCat("xdp: no interface '", interface.substr(0, 60), "'"));
  const LogScope log;
  bpf_link_create_opts options = {};
  options.sz = sizeof options;
  if (mode == XdpAttachMode::kNative) options.flags = XDP_FLAGS_DRV_MODE;
  if (mode == XdpAttachMode::kGeneric) options.flags = XDP_FLAGS_SKB_MODE;
  // A BPF link, unlike an attribute of the interface, ends with its last descriptor.
  const int fd = bpf_link_create(program_, static_cast<int>(index), BPF_XDP, &options);
  if (fd < 0) return Refused(StrCat("attach to ", interface), fd, log.Tail());
  MutexLock lock(mutex_);
  links_.emplace_back(fd);
  return OkStatus();
}

Status XdpPlane::Fits(const Lease& lease) {
  if (lease.mode != PacketMode::kSum && lease.mode != PacketMode::kTable) {
    return Unimplemented("xdp: modes sum and table only");
  }
  if (lease.cutoff > Duration::zero()) return Unimplemented("xdp: no rounds with a cut-off");
  if (lease.checked) return Unimplemented("xdp: no packets with checksums");
  return OkStatus();
}

StatusOr<SlotRange> XdpPlane::Grant(const Lease& lease, std::span<const SourceAddress> workers,
                                    SourceAddress aggregator) {
  WEIR_RETURN_IF_ERROR(Fits(lease));
  MutexLock lock(mutex_);
  WEIR_ASSIGN_OR_RETURN(const SlotRange range, ledger_.Grant(lease, workers));
  const Granted granted{.lease = lease,
                        .range = range,
                        .generation = ++generation_,
                        .workers = {workers.begin(), workers.end()}};
  const auto held = granted_.find(lease.id);
  const Status published = Publish(granted, aggregator);
  if (held != granted_.end()) {
    Withdraw(held->second);
    granted_.erase(held);
  }
  if (!published.ok()) {
    const uint32_t key = lease.id;
    bpf_map_delete_elem(leases_fd_, &key);
    Withdraw(granted);
    (void)ledger_.Revoke(lease.id, lease.epoch);
    return published;
  }
  granted_.emplace(lease.id, granted);
  return range;
}

// Workers are written first, because writing the lease makes the grant valid for all packets at
// once.
Status XdpPlane::Publish(const Granted& granted, SourceAddress aggregator) {
  for (uint32_t w = 0; w < granted.workers.size(); ++w) {
    const weir_xdp_sender sender = {.generation = granted.generation, .source = granted.workers[w]};
    const weir_xdp_place place = {.generation = granted.generation, .worker = w, .unused = 0};
    const int code = bpf_map_update_elem(senders_fd_, &sender, &place, BPF_ANY);
    if (code != 0) return Refused(StrCat("register worker ", w), code, "");
  }
  const weir_xdp_lease lease =
      KernelLease(granted.lease, granted.range, granted.generation, aggregator);
  const uint32_t key = granted.lease.id;
  const int code = bpf_map_update_elem(leases_fd_, &key, &lease, BPF_ANY);
  if (code != 0) return Refused(StrCat("register lease ", key), code, "");
  return OkStatus();
}

void XdpPlane::Withdraw(const Granted& granted) {
  for (const SourceAddress worker : granted.workers) {
    const weir_xdp_sender sender = {.generation = granted.generation, .source = worker};
    bpf_map_delete_elem(senders_fd_, &sender);
  }
}

Status XdpPlane::Revoke(uint16_t id, uint32_t epoch) {
  MutexLock lock(mutex_);
  WEIR_RETURN_IF_ERROR(ledger_.Revoke(id, epoch));
  const uint32_t key = id;
  bpf_map_delete_elem(leases_fd_, &key);
  const auto held = granted_.find(id);
  if (held != granted_.end()) {
    Withdraw(held->second);
    granted_.erase(held);
  }
  return OkStatus();
}

bool XdpPlane::ReadSlot(uint32_t index, weir_xdp_slot* slot) const {
  return bpf_map_lookup_elem_flags(slots_fd_, &index, slot, BPF_F_LOCK) == 0;
}

std::optional<OpenRound> XdpPlane::OldestOpenRound(uint16_t id) {
  MutexLock lock(mutex_);
  const auto held = granted_.find(id);
  if (held == granted_.end()) return std::nullopt;
  const Granted& granted = held->second;
  std::optional<OpenRound> oldest;
  weir_xdp_slot slot;
  for (uint32_t s = 0; s < granted.range.count; ++s) {
    if (!ReadSlot(granted.range.first + s, &slot)) continue;
    if (slot.generation != granted.generation || slot.newest < 0) continue;
    const weir_xdp_set& set = slot.sets[slot.newest & 1];
    const TimePoint opened_at{Duration(static_cast<int64_t>(set.opened_ns))};
    if (set.complete != 0 || (oldest.has_value() && oldest->opened_at <= opened_at)) continue;
    const uint64_t all = ~uint64_t{0} >> (kWorkersMax - granted.workers.size());
    oldest = {.slot = static_cast<uint16_t>(s),
              .round = static_cast<uint32_t>(slot.newest),
              .operation = __builtin_bswap32(set.operation),
              .missing = all & ~set.contributors,
              .opened_at = opened_at};
  }
  return oldest;
}

std::optional<TimePoint> XdpPlane::LastUsed(uint16_t id) {
  const uint32_t key = id;
  weir_xdp_lease lease;
  if (bpf_map_lookup_elem(leases_fd_, &key, &lease) != 0 || lease.used_ns == 0) return std::nullopt;
  return TimePoint{Duration(static_cast<int64_t>(lease.used_ns))};
}

StatusOr<XdpPlaneCounters> XdpPlane::Counters() const {
  const int processors = libbpf_num_possible_cpus();
  if (processors < 1) return Refused("count processors", processors, "");
  std::vector<weir_xdp_counters> all(static_cast<size_t>(processors));
  const uint32_t key = 0;
  const int code = bpf_map_lookup_elem(counters_fd_, &key, all.data());
  if (code != 0) return Refused("read its counters", code, "");
  XdpPlaneCounters sum;
  for (const weir_xdp_counters& one : all) {
    sum.packets.added += one.added;
    sum.packets.completed += one.completed;
    sum.packets.served += one.served;
    sum.packets.noticed += one.noticed;
    sum.packets.duplicate += one.duplicate;
    sum.packets.stale += one.stale;
    sum.packets.early += one.early;
    sum.packets.foreign += one.foreign;
    sum.passed += one.passed;
    sum.handed += one.handed;
    sum.ring_full += one.ring_full;
  }
  return sum;
}

int XdpPlane::OnRequest(void* self, void* data, size_t size) {
  auto* plane = static_cast<XdpPlane*>(self);
  weir_xdp_request request;
  if (size < sizeof request) return 0;
  std::memcpy(&request, data, sizeof request);
  const std::span<const std::byte> behind(static_cast<const std::byte*>(data) + sizeof request,
                                          size - sizeof request);
  if (request.bytes <= behind.size()) plane->SendReply(request, behind.first(request.bytes));
  return ++plane->taken_ < kRepliesMax ? 0 : -EAGAIN;  // a negative value ends the call
}

// Takes no lock, so that leases can change while there is nothing to send.
bool XdpPlane::AwaitReplies(Duration wait) const {
  pollfd ready = {.fd = ring_buffer__epoll_fd(ring_.get()), .events = POLLIN, .revents = 0};
  return poll(&ready, 1, mesh::PollTimeout(wait)) > 0;
}

bool XdpPlane::SendReplies(ReplySink* sink) {
  MutexLock lock(mutex_);
  sink_ = sink;
  taken_ = 0;
  ring_buffer__consume(ring_.get());
  sink_ = nullptr;
  return taken_ > 0;
}

void XdpPlane::SendReply(const weir_xdp_request& request, std::span<const std::byte> packet) {
  const auto held = granted_.find(static_cast<uint16_t>(request.lease));
  if (held == granted_.end() || held->second.generation != request.generation) return;
  const Granted& granted = held->second;
  recipients_.clear();
  for (size_t w = 0; w < granted.workers.size(); ++w) {
    if ((request.recipients >> w & 1) != 0) recipients_.push_back(granted.workers[w]);
  }
  if (!packet.empty()) return sink_->SendToAll(recipients_, packet);
  weir_xdp_slot slot;
  if (request.slot >= granted.range.count) return;
  if (!ReadSlot(granted.range.first + request.slot, &slot)) return;
  if (slot.generation != granted.generation) return;
  // A slot that has advanced needs no reply, because all workers have had it.
  const std::vector<std::byte> reply = XdpReply(granted.lease, request, slot);
  if (!reply.empty()) sink_->SendToAll(recipients_, reply);
}

StatusOr<XdpTestRun> XdpPlane::RunForTest(std::span<const std::byte> frame, int repeat) const {
  constexpr size_t kFrameBytesMax = 3500;
  if (frame.size() > kFrameBytesMax) {
    return InvalidArgument(StrCat("frame: expected at most 3500 octets, found ", frame.size()));
  }
  XdpTestRun run;
  run.frame.resize(4096);
  bpf_test_run_opts options = {};
  options.sz = sizeof options;
  options.data_in = frame.data();
  options.data_out = run.frame.data();
  options.data_size_in = static_cast<uint32_t>(frame.size());
  options.data_size_out = static_cast<uint32_t>(run.frame.size());
  options.repeat = repeat;
  const int code = bpf_prog_test_run_opts(program_, &options);
  if (code != 0) return Refused("run its program", code, "");
  run.action = options.retval;
  run.frame.resize(options.data_size_out);
  run.time = Duration(options.duration);
  return run;
}

}  // namespace weir::aggregation
