// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/builtin/verbs/device.h"

#include <fcntl.h>
#include <netdb.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <vector>

namespace weir::verbs {
namespace {
using mesh::ErrorText;
using mesh::SocketAddress;

constexpr int kAnyGidIndex = -1;

class DeviceList {
 public:
  DeviceList() : devices_(Rdma().ibv_get_device_list(&count_)) {}
  ~DeviceList() {
    if (devices_ != nullptr) Rdma().ibv_free_device_list(devices_);
  }
  DeviceList(const DeviceList&) = delete;
  std::span<ibv_device* const> all() const {
    return {devices_, static_cast<size_t>(devices_ != nullptr ? count_ : 0)};
  }
  ibv_device* Find(std::string_view name) const {
    for (ibv_device* device : all()) {
      if (name == Rdma().ibv_get_device_name(device)) return device;
    }
    return nullptr;
  }

 private:
  int count_ = 0;
  ibv_device** devices_;
};

// RoCE GIDs are IP addresses, IPv4 ones in the form ::ffff:a.b.c.d. Link-local ones identify no
// host.
std::optional<SocketAddress> AddressOfGid(const ibv_gid_entry& entry) {
  if (entry.gid_type == IBV_GID_TYPE_IB) return std::nullopt;
  const uint8_t* raw = entry.gid.raw;
  static constexpr uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  SocketAddress address;
  if (std::memcmp(raw, kMapped, sizeof kMapped) == 0) {
    sockaddr_in v4 = {};
    v4.sin_family = AF_INET;
    std::memcpy(&v4.sin_addr, raw + sizeof kMapped, 4);
    std::memcpy(&address.storage, &v4, sizeof v4);
    address.size = sizeof v4;
    return address;
  }
  if (raw[0] == 0xfe && (raw[1] & 0xc0) == 0x80) return std::nullopt;
  sockaddr_in6 v6 = {};
  v6.sin6_family = AF_INET6;
  std::memcpy(&v6.sin6_addr, raw, sizeof v6.sin6_addr);
  std::memcpy(&address.storage, &v6, sizeof v6);
  address.size = sizeof v6;
  return address;
}

std::vector<ibv_gid_entry> Gids(ibv_device* device) {
  const ContextPtr context(Rdma().ibv_open_device(device));
  std::vector<ibv_gid_entry> entries(1024);
  const ssize_t count = context
                            ? Rdma()._ibv_query_gid_table(context.get(), entries.data(),
                                                          entries.size(), 0, sizeof(ibv_gid_entry))
                            : 0;
  entries.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  return entries;
}

std::string HostText(const sockaddr* address, socklen_t size) {
  char host[NI_MAXHOST];
  if (getnameinfo(address, size, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) return "?";
  return host;
}

// "rxe0 (10.0.0.1), mlx5_0 (fd00::1)".
std::string DescribeDevices() {
  std::string text;
  const DeviceList devices;
  for (ibv_device* device : devices.all()) {
    std::vector<std::string> addresses;
    for (const ibv_gid_entry& entry : Gids(device)) {
      const auto address = AddressOfGid(entry);
      if (!address) continue;
      std::string host = HostText(address->get(), address->size);
      // RoCE has each address once per protocol version.
      if (std::find(addresses.begin(), addresses.end(), host) == addresses.end()) {
        addresses.push_back(std::move(host));
      }
    }
    text += StrCat(text.empty() ? "" : ", ", Rdma().ibv_get_device_name(device), " (");
    for (size_t i = 0; i < addresses.size(); ++i) text += (i == 0 ? "" : ", ") + addresses[i];
    text += addresses.empty() ? "no address)" : ")";
  }
  return text.empty() ? "none" : text;
}

uint16_t PortOf(const sockaddr_storage& storage) {
  return storage.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(storage).sin6_port
                                       : reinterpret_cast<const sockaddr_in&>(storage).sin_port;
}

void SetPort(sockaddr_storage& storage, uint16_t port) {
  if (storage.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(storage).sin6_port = port;
  } else {
    reinterpret_cast<sockaddr_in&>(storage).sin_port = port;
  }
}

std::string EndpointOf(const sockaddr* address) {
  const bool v6 = address->sa_family == AF_INET6;
  return mesh::Endpoint(address, v6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
}

bool IsWildcard(const sockaddr_storage& storage) {
  if (storage.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(storage).sin_addr.s_addr == INADDR_ANY;
  }
  const in6_addr any = IN6ADDR_ANY_INIT;
  return std::memcmp(&reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr, &any, sizeof any) ==
         0;
}

// The address of the GID "device/gid-index", with `port` as text.
StatusOr<SocketAddress> AddressOfDevice(ibv_device* device, int gid_index,
                                        const std::string& port) {
  const std::string name = Rdma().ibv_get_device_name(device);
  for (const ibv_gid_entry& entry : Gids(device)) {
    if (gid_index != kAnyGidIndex && entry.gid_index != static_cast<uint32_t>(gid_index)) continue;
    auto address = AddressOfGid(entry);
    if (address) {
      WEIR_ASSIGN_OR_RETURN(const SocketAddress any, mesh::ResolveAddress("0.0.0.0:" + port));
      SetPort(address->storage, PortOf(any.storage));
      return *address;
    }
    if (gid_index == kAnyGidIndex) continue;
    return InvalidArgument(StrCat("GID index ", gid_index, " of ", name,
                                  " is no IP address; listen at the address of its interface"));
  }
  if (gid_index == kAnyGidIndex) {
    return Unavailable(StrCat("RDMA device ", name, " has no IP address"));
  }
  return InvalidArgument(StrCat("RDMA device ", name, " has no GID index ", gid_index));
}

StatusOr<SocketAddress> ParseListen(const std::string& listen) {
  const size_t colon = listen.rfind(':');
  const std::string host = listen.substr(0, colon);
  const size_t slash = host.find('/');
  const DeviceList devices;
  ibv_device* const device = devices.Find(host.substr(0, slash));
  if (device == nullptr || colon == std::string::npos) {
    StatusOr<SocketAddress> address = mesh::ResolveAddress(listen);
    if (!address.ok()) {
      return InvalidArgument(
          StrCat(Message(address.status()), "; RDMA devices: ", DescribeDevices()));
    }
    if (IsWildcard(address->storage)) {
      return InvalidArgument(
          StrCat("address '", listen, "': expected that of one RDMA device: ", DescribeDevices()));
    }
    return address;
  }
  int gid_index = kAnyGidIndex;
  if (slash != std::string::npos) {
    const std::string digits = host.substr(slash + 1);
    if (digits.empty() || digits.size() > 5 ||
        digits.find_first_not_of("0123456789") != std::string::npos) {
      return InvalidArgument(
          StrCat("address '", listen, "': expected device/gid-index:port, found '", digits, "'"));
    }
    gid_index = std::stoi(digits);
  }
  return AddressOfDevice(device, gid_index, listen.substr(colon + 1));
}

bool SetNonBlocking(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

}  // namespace

Status ResourceError(const std::string& what, size_t bytes, int error) {
  if (error != ENOMEM && error != EPERM && error != EAGAIN) {
    return Unavailable(StrCat(what, ": ", ErrorText(error)));
  }
  rlimit limit = {};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  const std::string found =
      limit.rlim_cur == RLIM_INFINITY ? std::string("unlimited") : StrCat(limit.rlim_cur, " bytes");
  return ResourceExhausted(StrCat(what, ": ", ErrorText(error), "; it needs ", bytes,
                                  " bytes of locked memory, the limit (`ulimit -l`, systemd's "
                                  "LimitMEMLOCK=) is ",
                                  found));
}

StatusOr<ChannelPtr> OpenEventChannel() {
  WEIR_RETURN_IF_ERROR(LoadRdmaCore());
  if (DeviceList().all().empty()) {
    return Unavailable("this host has no RDMA device that rdma-core can use");
  }
  ChannelPtr channel(Rdma().rdma_create_event_channel());
  if (!channel) {
    return Unavailable(StrCat("the RDMA connection manager cannot be opened: ", ErrorText(errno),
                              "; is the kernel module rdma_ucm loaded"));
  }
  if (!SetNonBlocking(channel->fd)) return Internal(StrCat("fcntl: ", ErrorText(errno)));
  return channel;
}

StatusOr<CmIdPtr> ListenAt(const std::string& listen, int backlog, rdma_event_channel* channel) {
  WEIR_ASSIGN_OR_RETURN(SocketAddress address, ParseListen(listen));
  rdma_cm_id* raw = nullptr;
  if (Rdma().rdma_create_id(channel, &raw, nullptr, RDMA_PS_TCP) != 0) {
    return Unavailable(StrCat("rdma_create_id: ", ErrorText(errno)));
  }
  CmIdPtr id(raw);
  const bool bound =
      Rdma().rdma_bind_addr(id.get(), reinterpret_cast<sockaddr*>(&address.storage)) == 0;
  const int error = errno;
  if (!bound && error == EADDRINUSE) {
    return Unavailable(StrCat("cannot listen on ", listen, ": ", ErrorText(error)));
  }
  if (!bound || id->verbs == nullptr) {
    return Unavailable(StrCat("no RDMA device has the address ",
                              HostText(address.get(), address.size), " (listen: ", listen,
                              bound ? std::string() : ": " + ErrorText(error),
                              "); RDMA devices: ", DescribeDevices()));
  }
  if (Rdma().rdma_listen(id.get(), backlog) != 0) {
    return Unavailable(StrCat("cannot listen on ", listen, ": ", ErrorText(errno)));
  }
  return id;
}

std::string BoundAddress(rdma_cm_id* id) { return EndpointOf(rdma_get_local_addr(id)); }
std::string PeerAddress(rdma_cm_id* id) { return EndpointOf(rdma_get_peer_addr(id)); }

Device::~Device() {
  region_.reset();
  if (pool_ != nullptr) munmap(pool_, pool_bytes_);
}

StatusOr<std::unique_ptr<Device>> Device::Open(rdma_cm_id* id, const TransportOptions& options) {
  const int peers = options.world - 1;
  std::unique_ptr<Device> device(new Device());
  const std::string name = Rdma().ibv_get_device_name(id->verbs->device);
  if (id->verbs->device->transport_type != IBV_TRANSPORT_IB) {  // iWARP has no immediate values
    return Unavailable(StrCat("RDMA device ", name, " is neither InfiniBand nor RoCE"));
  }
  device->context_.reset(Rdma().ibv_open_device(id->verbs->device));
  if (!device->context_) return Unavailable(StrCat("RDMA device ", name, ": ", ErrorText(errno)));
  ibv_device_attr attributes = {};
  if (const int error = Rdma().ibv_query_device(device->context(), &attributes); error != 0) {
    return Unavailable(StrCat("RDMA device ", name, ": ", ErrorText(error)));
  }
  const DeviceLimits limits = {static_cast<uint32_t>(attributes.max_cqe),
                               static_cast<uint32_t>(attributes.max_qp_wr)};
  StatusOr<FlowPlan> plan = PlanFlow(peers, options, limits);
  if (!plan.ok()) return Annotate(plan.status(), StrCat("RDMA device ", name));
  device->plan_ = *plan;
  const size_t pool_bytes = plan->PeerBytes() * static_cast<size_t>(peers);
  device->domain_.reset(Rdma().ibv_alloc_pd(device->context()));
  device->completion_channel_.reset(Rdma().ibv_create_comp_channel(device->context()));
  if (!device->domain_ || !device->completion_channel_ ||
      !SetNonBlocking(device->completion_channel()->fd) ||
      !SetNonBlocking(device->context()->async_fd)) {
    return ResourceError(StrCat("RDMA device ", name), pool_bytes, errno);
  }
  const auto entries = static_cast<int>(plan->PeerCompletions()) * std::max(peers, 1);
  device->completions_.reset(
      Rdma().ibv_create_cq(device->context(), entries, nullptr, device->completion_channel(), 0));
  if (!device->completions_) {
    return ResourceError(StrCat("completion queue of RDMA device ", name), pool_bytes, errno);
  }
  if (peers > 0) WEIR_RETURN_IF_ERROR(device->MakePool(peers));
  return device;
}

Status Device::MakePool(int peers) {
  pool_bytes_ = plan_.PeerBytes() * static_cast<size_t>(peers);
  void* const memory =
      mmap(nullptr, pool_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return ResourceExhausted(StrCat("buffers of ", pool_bytes_, " bytes: ", ErrorText(errno)));
  }
  pool_ = static_cast<std::byte*>(memory);
  // Children of a fork must not share registered pages: a write would give this process other
  // pages.
  madvise(pool_, pool_bytes_, MADV_DONTFORK);
  region_.reset(Rdma().ibv_reg_mr(domain(), pool_, pool_bytes_, IBV_ACCESS_LOCAL_WRITE));
  if (!region_) {
    return ResourceError(StrCat("registering buffers with RDMA device ", name()), pool_bytes_,
                         errno);
  }
  return OkStatus();
}

}  // namespace weir::verbs
