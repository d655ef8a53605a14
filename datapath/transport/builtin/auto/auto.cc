// SPDX-License-Identifier: Apache-2.0
// The auto transport: shared memory between ranks of one node, TCP between the others, in one mesh.
// The choice is made per pair while connecting and both ends agree on it (builtin/shm/attach.h).

#include "datapath/transport/builtin/shm/shm.h"
#include "datapath/transport/builtin/tcp/options.h"

namespace weir {
namespace {

class AutoFactory : public TransportFactory {
 public:
  const TransportTraits& Traits() const override { return traits_; }
  StatusOr<std::unique_ptr<Transport>> Create(const TransportOptions& options) const override {
    return shm::MakeMesh(options, shm::Otherwise::kTcp);
  }

 private:
  const TransportTraits traits_ = {
      .name = "auto", .lossless = true, .crosses_hosts = true, .options = tcp::Options()};
};

}  // namespace

void RegisterAuto(Registry<TransportFactory>& registry, uint8_t wire_id) {
  registry.Add(wire_id, std::make_unique<AutoFactory>());
}

}  // namespace weir
