// SPDX-License-Identifier: Apache-2.0
// The tcp transport: a mesh of TCP connections, one or several per pair of ranks.

#include "datapath/transport/builtin/tcp/options.h"
#include "datapath/transport/builtin/tcp/socket_stream.h"
#include "datapath/transport/mesh/rendezvous.h"
#include "datapath/transport/mesh/stream_mesh.h"

namespace weir {
namespace {

class TcpMesh : public mesh::StreamMesh {
 public:
  using StreamMesh::StreamMesh;

 protected:
  StatusOr<mesh::Streams> MakeStreams(const std::vector<TransportAddress>& addresses,
                                      TimePoint deadline) override {
    mesh::Rendezvous rendezvous(options(), listener(), wake());
    WEIR_ASSIGN_OR_RETURN(std::vector<mesh::Sockets> sockets, rendezvous.Run(addresses, deadline));
    mesh::Streams streams(sockets.size());
    for (int r = 0; r < world(); ++r) {
      if (r == rank()) continue;
      streams[r] = {tcp::MakeStream(std::move(sockets[r]), options()),
                    std::move(rendezvous.channel(r))};
    }
    return streams;
  }
};

class TcpFactory : public TransportFactory {
 public:
  const TransportTraits& Traits() const override { return traits_; }
  StatusOr<std::unique_ptr<Transport>> Create(const TransportOptions& options) const override {
    WEIR_ASSIGN_OR_RETURN(mesh::StreamMeshParts parts, mesh::MakeStreamMeshParts(options));
    return std::make_unique<TcpMesh>(std::move(parts));
  }

 private:
  const TransportTraits traits_ = {
      .name = "tcp", .lossless = true, .crosses_hosts = true, .options = tcp::Options()};
};

}  // namespace

void RegisterTcp(Registry<TransportFactory>& registry, uint8_t wire_id) {
  registry.Add(wire_id, std::make_unique<TcpFactory>());
}

}  // namespace weir
