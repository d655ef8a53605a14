// SPDX-License-Identifier: Apache-2.0
// PowerSGD on the device; datapath/codec/builtin/power_sgd.cc describes the payload. The device
// makes the products, which read or write the whole bucket. What ranks must agree on in every bit
// (the orthonormal P and the next start) is small and made on the host, by the functions of the
// host codec, from the sums that the network has left there. P Q^T is added in the host's order, so
// that all ranks decode the same bits. This rank's own M Q and M^T P are sums in another order than
// the host's, which needs no agreement.
//
// The products read gradient and residual directly, without storing their sum first, and all
// matrices of a bucket share a launch. A library would need one pass more for the sum and a launch
// for every matrix. Up to kRanks columns of a factor are found in one pass over the matrix.

#include <algorithm>

#include "datapath/codec/low_rank.h"
#include "datapath/cuda/memory.h"
#include "datapath/cuda/passes.h"

namespace weir::cuda {
namespace {

constexpr unsigned kRanks = 8;               // columns of a factor that a pass finds
constexpr unsigned kRows = 8;                // of a tile of M Q and of P Q^T
constexpr unsigned kDotColumns = 4096;       // of a tile of M Q
constexpr unsigned kColumns = kTeamThreads;  // of the other tiles
constexpr unsigned kSumRows = 64;            // of a tile of M^T P
constexpr unsigned kBatch = 32;              // factors of a launch

constexpr uint64_t PartsOf(uint64_t n, uint64_t part) { return (n + part - 1) / part; }

/// A factor. Offsets count floats.
struct Matrix {
  uint64_t at, rows, columns, rank;  // rank 0: sent as it is
  uint64_t p;                        // in the P of all
  uint64_t start;                    // in the starts of all
  uint64_t last;                     // in round 1's payload
  uint64_t partial;                  // in the partial sums
  uint64_t tile;                     // its first in the launch
};

/// The floats of P if `left`, or else of Q.
constexpr uint64_t FloatsOf(const Matrix& m, bool left) {
  return (left ? m.rows : m.columns) * m.rank;
}

/// The factors of a launch, which are a part of its arguments.
struct Batch {
  Matrix matrices[kBatch];
  unsigned count;

  WEIR_DEVICE const Matrix& Of(uint64_t tile) const {
    unsigned i = count - 1;
    while (i > 0 && matrices[i].tile > tile) --i;
    return matrices[i];
  }
};

/// The place of a tile in a matrix of which a tile covers `rows` x `columns`.
struct Place {
  uint64_t row, column;
  unsigned rows, columns;
};
WEIR_DEVICE inline Place PlaceOf(const Matrix& m, uint64_t tile, unsigned rows, unsigned columns) {
  const uint64_t across = (m.columns + columns - 1) / columns, index = tile - m.tile;
  Place place{index / across * rows, index % across * columns, rows, columns};
  if (m.rows - place.row < rows) place.rows = static_cast<unsigned>(m.rows - place.row);
  if (m.columns - place.column < columns) {
    place.columns = static_cast<unsigned>(m.columns - place.column);
  }
  return place;
}

/// The products of up to kRows rows with up to kRanks vectors.
struct Dots {
  float values[kRows * kRanks];
  uint32_t max_bits;

  static WEIR_DEVICE Dots Zero() {
    Dots zero;
    WEIR_UNROLL for (float& value : zero.values) value = 0;
    zero.max_bits = 0;
    return zero;
  }
  /// values[place], without an index that would keep the array out of registers.
  WEIR_DEVICE float Value(unsigned place) const {
    float value = 0;
    WEIR_UNROLL for (unsigned i = 0; i < kRows * kRanks; ++i) {
      if (i == place) value = values[i];
    }
    return value;
  }
  WEIR_DEVICE void Add(const Dots& other) {
    WEIR_UNROLL for (unsigned i = 0; i < kRows * kRanks; ++i) values[i] += other.values[i];
    max_bits = max_bits > other.max_bits ? max_bits : other.max_bits;
  }
};

/// M Q, in partial sums over kDotColumns columns, and the largest magnitude of every part.
struct LeftProgram : PassProgram<false> {
  Batch batch;
  const float* starts;
  float* partial;

  template <class S>
  WEIR_DEVICE void Tile(Team& team, S& shared, size_t tile) const {
    const Matrix& m = batch.Of(tile);
    const Place place = PlaceOf(m, tile, kRows, kDotColumns);
    const uint64_t part = place.column / kDotColumns;
    PassSums sums = PassSums::Zero();
    uint64_t first = 0;
    do {
      const unsigned ranks =
          m.rank - first < kRanks ? static_cast<unsigned>(m.rank - first) : kRanks;
      const float* const q = starts + m.start + first * m.columns + place.column;
      const Dots dots = team.Reduce<Dots>(place.columns, [&](unsigned i, Dots* own) {
        float vector[kRanks];
        WEIR_UNROLL for (unsigned k = 0; k < kRanks; ++k) {
          vector[k] = k < ranks ? q[k * m.columns + i] : 0.0f;
        }
        WEIR_UNROLL for (unsigned r = 0; r < kRows; ++r) {
          if (r >= place.rows) break;
          const float e = in.Load(m.at + (place.row + r) * m.columns + place.column + i);
          const uint32_t magnitude = BitsOf(e) & kMagnitudeBits;
          own->max_bits = own->max_bits > magnitude ? own->max_bits : magnitude;
          WEIR_UNROLL for (unsigned k = 0; k < kRanks; ++k) {
            own->values[r * kRanks + k] += e * vector[k];
          }
        }
      });
      sums.max_bits = sums.max_bits > dots.max_bits ? sums.max_bits : dots.max_bits;
      float* const to = partial + m.partial + part * m.rows * m.rank + place.row * m.rank + first;
      team.ForEach(place.rows * ranks, [&](unsigned i) {
        to[i / ranks * m.rank + i % ranks] = dots.Value(i / ranks * kRanks + i % ranks);
      });
      first += kRanks;
    } while (first < m.rank);
    AddSums(team, shared, sums);
  }
};

/// M^T P, in partial sums over kSumRows rows.
struct RightProgram : TileProgram {
  PassInput in;
  Batch batch;
  const float* p;
  float* partial;

  WEIR_DEVICE void Tile(Team& team, Shared&, size_t tile) const {
    const Matrix& m = batch.Of(tile);
    const Place place = PlaceOf(m, tile, kSumRows, kColumns);
    const uint64_t part = place.row / kSumRows;
    for (uint64_t first = 0; first < m.rank; first += kRanks) {
      const unsigned ranks =
          m.rank - first < kRanks ? static_cast<unsigned>(m.rank - first) : kRanks;
      const float* const rows = p + m.p + place.row * m.rank + first;
      float* const to =
          partial + m.partial + part * m.rank * m.columns + first * m.columns + place.column;
      team.ForEach(place.columns, [&](unsigned i) {
        float sums[kRanks] = {};
        for (unsigned r = 0; r < place.rows; ++r) {
          const float e = in.Load(m.at + (place.row + r) * m.columns + place.column + i);
          WEIR_UNROLL for (unsigned k = 0; k < kRanks; ++k) {
            if (k < ranks) sums[k] += rows[r * m.rank + k] * e;
          }
        }
        WEIR_UNROLL for (unsigned k = 0; k < kRanks; ++k) {
          if (k < ranks) to[k * m.columns + i] = sums[k];
        }
      });
    }
  }
};

/// Adds the partial sums of a factor's side: P if `left`, or else Q.
struct TotalProgram : TileProgram {
  Batch batch;
  bool left;
  const float* partial;
  float* to;

  WEIR_DEVICE void Tile(Team& team, Shared&, size_t tile) const {
    const Matrix& m = batch.Of(tile);
    const uint64_t floats = FloatsOf(m, left), at = (tile - m.tile) * kTileElements;
    if (at >= floats) return;
    const uint64_t parts =
        left ? (m.columns + kDotColumns - 1) / kDotColumns : (m.rows + kSumRows - 1) / kSumRows;
    const uint64_t rest = floats - at;
    float* const out = to + (left ? m.p : m.last) + at;
    team.ForEach(rest < kTileElements ? static_cast<unsigned>(rest) : unsigned{kTileElements},
                 [&](unsigned i) {
                   double sum = 0;
                   for (uint64_t part = 0; part < parts; ++part) {
                     sum += static_cast<double>(partial[m.partial + part * floats + at + i]);
                   }
                   out[i] = static_cast<float>(sum);
                 });
  }
};

/// The rest: M - P Q^T, or nothing of parts that are sent as they are, which it copies to `last`.
template <bool kCounts>
struct RestProgram : PassProgram<kCounts> {
  Batch batch;
  const float* p;
  float* last;

  template <class S>
  WEIR_DEVICE void Tile(Team& team, S& shared, size_t tile) const {
    const PassInput& in = this->in;
    const Matrix& m = batch.Of(tile);
    const Place place = PlaceOf(m, tile, kRows, kColumns);
    const PassSums sums =
        team.Reduce<PassSums>(place.rows * kColumns, [&](unsigned i, PassSums* part) {
          if (i % kColumns >= place.columns) return;
          const uint64_t row = place.row + i / kColumns, column = place.column + i % kColumns;
          const uint64_t index = m.at + row * m.columns + column;
          float e = in.Load(index);
          this->Count(shared, index, e);
          part->AddInput(e);
          if (m.rank == 0) {
            last[m.last + row * m.columns + column] = e;
            in.Keep(index, 0.0f);
            return;
          }
          for (uint64_t k = 0; k < m.rank; ++k) {
            e += -p[m.p + row * m.rank + k] * last[m.last + k * m.columns + column];
          }
          part->AddLost(e);
          in.Keep(index, e);
        });
    this->AddSums(team, shared, sums);
  }
};

/// out += P Q^T, where P has been scaled, and scale times what was sent as it is.
struct AddProductProgram : TileProgram {
  Batch batch;
  const float* p;
  const float* last;
  float scale;
  float* out;

  WEIR_DEVICE void Tile(Team& team, Shared&, size_t tile) const {
    const Matrix& m = batch.Of(tile);
    const Place place = PlaceOf(m, tile, kRows, kColumns);
    team.ForEach(place.rows * kColumns, [&](unsigned i) {
      if (i % kColumns >= place.columns) return;
      const uint64_t row = place.row + i / kColumns, column = place.column + i % kColumns;
      float* const to = out + m.at + row * m.columns + column;
      float sum = *to;
      if (m.rank == 0) sum += scale * last[m.last + row * m.columns + column];
      for (uint64_t k = 0; k < m.rank; ++k) {
        sum += p[m.p + row * m.rank + k] * last[m.last + k * m.columns + column];
      }
      *to = sum;
    });
  }
};

/// One team: the sum of all teams of a launch.
struct SumTeamsProgram : TileProgram {
  const PassSums* partials;
  unsigned teams;
  PassSums* sum;
  WEIR_DEVICE void Tile(Team& team, Shared&, size_t) const {
    const PassSums sums =
        team.Reduce<PassSums>(teams, [&](unsigned i, PassSums* part) { part->Add(partials[i]); });
    team.Once([&] { *sum = sums; });
  }
};

uint64_t TilesOfParts(const Matrix& m, unsigned rows, unsigned columns) {
  return PartsOf(m.rows, rows) * PartsOf(m.columns, columns);
}

/// A bucket's factors with their offsets, and the sizes of what the calls need.
struct DeviceLayout {
  FactorLayout factors;
  std::vector<Matrix> matrices;
  size_t starts = 0, left_partial = 0, right_partial = 0;  // floats

  static StatusOr<DeviceLayout> Make(const CodecTraits& traits, size_t n,
                                     const EncodeContext& context) {
    DeviceLayout layout;
    WEIR_ASSIGN_OR_RETURN(layout.factors, MakeFactorLayout(traits, n, context));
    uint64_t p = 0, last = 0;
    for (const Factor& factor : layout.factors.factors) {
      const MatrixPart& part = factor.part;
      layout.matrices.push_back({.at = part.at,
                                 .rows = part.rows,
                                 .columns = part.columns,
                                 .rank = factor.rank,
                                 .p = p,
                                 .start = layout.starts,
                                 .last = last,
                                 .partial = 0,
                                 .tile = 0});
      p += factor.first_floats();
      last += factor.last_floats();
      if (factor.rank == 0) continue;
      layout.starts += factor.last_floats();
      layout.left_partial += factor.first_floats() * PartsOf(part.columns, kDotColumns);
      layout.right_partial += factor.last_floats() * PartsOf(part.rows, kSumRows);
    }
    return layout;
  }
  /// The floats that the host makes: the starts in round 0, and P afterwards.
  size_t host_floats() const { return std::max(starts, factors.first_floats); }
  size_t partial_floats() const { return std::max(left_partial, right_partial); }
  size_t launches() const { return PartsOf(matrices.size(), kBatch); }  // at most

  /// Calls launch(batch, tiles) for all factors whose tiles_of(matrix) is not 0.
  template <class TilesOfMatrix, class LaunchBatch>
  Status InBatches(const TilesOfMatrix& tiles_of, const LaunchBatch& launch,
                   bool left = true) const {
    Batch batch{};
    uint64_t tiles = 0, partial = 0;
    for (const Matrix& matrix : matrices) {
      const uint64_t own = tiles_of(matrix);
      Matrix& next = batch.matrices[batch.count];
      next = matrix;
      next.tile = tiles;
      next.partial = partial;
      partial += left ? matrix.rows * matrix.rank * PartsOf(matrix.columns, kDotColumns)
                      : matrix.columns * matrix.rank * PartsOf(matrix.rows, kSumRows);
      if (own == 0) continue;
      tiles += own;
      if (++batch.count < kBatch) continue;
      WEIR_RETURN_IF_ERROR(launch(batch, tiles));
      batch.count = 0;
      tiles = 0;
    }
    return batch.count == 0 ? OkStatus() : launch(batch, tiles);
  }
};

class DevicePowerSgd : public DeviceCodec {
 public:
  explicit DevicePowerSgd(const Codec& host) : host_(host) {}

  const Codec& host() const override { return host_; }

  /// P or the starts, and partial sums: rank / 64 of the bucket.
  size_t WorkspaceBytes(size_t n, const DeviceCall& call) const override {
    const auto layout = LayoutOf(n, call);
    if (!layout.ok()) return kPassWorkspace;
    return kPassWorkspace + RoomOf(layout->host_floats()) + RoomOf(layout->partial_floats()) +
           layout->launches() * sizeof(PassSums);
  }
  size_t PinnedBytes(size_t n, const DeviceCall& call) const override {
    const auto layout = LayoutOf(n, call);
    return layout.ok() ? RoomOf(layout->host_floats()) : 0;
  }

  /// Round 0: one pass over the bucket for every kRanks columns of a factor. Round 1: the same and
  /// one pass, and O(rows * rank^2) on the host.
  Status Encode(const PassOperands& operands, const DeviceCall& call,
                std::span<std::byte> out) const override {
    WEIR_ASSIGN_OR_RETURN(const DeviceLayout layout, LayoutOf(operands.gradient.size(), call));
    WEIR_RETURN_IF_ERROR(CheckEncode(*this, operands, call, out));
    WEIR_RETURN_IF_ERROR(CheckPinned(layout, call));
    WEIR_RETURN_IF_ERROR(RefuseCapture(call));
    WEIR_ASSIGN_OR_RETURN(const PassInput input, MakeInput(operands, call));
    const size_t first_bytes = layout.factors.first_floats * sizeof(float);
    if (call.context.round == 0) {
      return First(layout, input, call, out.first(first_bytes));
    }
    WEIR_RETURN_IF_ERROR(CheckLaneBytes(host_.Traits(), call.context.previous, first_bytes));
    return Last(layout, input, call, out.first(layout.factors.bytes() - first_bytes));
  }

  /// O(n * rank), and O(rows * rank^2) on the host. With a state, the sum of Q becomes the start of
  /// the next step.
  Status DecodeAdd(std::span<const std::byte> payload, const DeviceCall& call, float scale,
                   std::span<float> out) const override {
    WEIR_ASSIGN_OR_RETURN(const DeviceLayout layout, LayoutOf(out.size(), call));
    WEIR_RETURN_IF_ERROR(CheckDecode(*this, call, out.size(), payload));
    WEIR_RETURN_IF_ERROR(CheckPinned(layout, call));
    WEIR_RETURN_IF_ERROR(RefuseCapture(call));
    WEIR_RETURN_IF_ERROR(CheckLaneBytes(host_.Traits(), payload, layout.factors.bytes()));
    const std::span<const std::byte> on_host = call.payload_on_host;
    if (on_host.size() != payload.size()) {
      return InvalidArgument(StrCat(host_.Traits().name, ": needs the payload on the host, too"));
    }
    WEIR_RETURN_IF_ERROR(CheckFinite(host_.Traits(), on_host));
    MakeP(layout, on_host, scale, call);
    WEIR_RETURN_IF_ERROR(Upload(layout.factors.first_floats, call));
    const float* const p = OnDevice(call);
    if (auto* const state = dynamic_cast<PowerSgdState*>(call.context.state)) {
      state->q = NextStarts(layout, on_host);
    }
    const auto* const floats = reinterpret_cast<const float*>(payload.data());
    const float* const last = floats + layout.factors.first_floats;
    return layout.InBatches([](const Matrix& m) { return TilesOfParts(m, kRows, kColumns); },
                            [&](const Batch& batch, uint64_t tiles) {
                              return Launch(
                                         call.stream, tiles,
                                         AddProductProgram{{}, batch, p, last, scale, out.data()})
                                  .status();
                            });
  }

  Status Accumulate(const DeviceCall& call, std::span<std::byte> sum,
                    std::span<const std::byte> addend) const override {
    return AccumulateFloatLanes(*this, call, sum, addend);
  }

 private:
  static size_t RoomOf(size_t floats) {
    return (floats * sizeof(float) + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
  }
  StatusOr<DeviceLayout> LayoutOf(size_t n, const DeviceCall& call) const {
    return DeviceLayout::Make(host_.Traits(), n, call.context);
  }
  /// kFailedPrecondition: the stream records a CUDA graph, which could not repeat the host's part.
  Status RefuseCapture(const DeviceCall& call) const {
    if (!IsCaptured(call.stream)) return OkStatus();
    return FailedPrecondition(StrCat(
        host_.Traits().name, ": a part is made on the host, so it cannot be part of a CUDA graph"));
  }
  Status CheckPinned(const DeviceLayout& layout, const DeviceCall& call) const {
    const size_t needed = RoomOf(layout.host_floats());
    if (call.pinned.size() >= needed) return OkStatus();
    return InvalidArgument(StrCat(host_.Traits().name, ": pinned memory of ", call.pinned.size(),
                                  " bytes, needed ", needed));
  }
  /// The parts of the workspace and of the pinned memory.
  static float* OnDevice(const DeviceCall& call) {
    return reinterpret_cast<float*>(call.workspace.data() + kPassWorkspace);
  }
  static float* Partial(const DeviceLayout& layout, const DeviceCall& call) {
    return reinterpret_cast<float*>(call.workspace.data() + kPassWorkspace +
                                    RoomOf(layout.host_floats()));
  }
  static PassSums* LaunchSums(const DeviceLayout& layout, const DeviceCall& call) {
    return reinterpret_cast<PassSums*>(call.workspace.data() + kPassWorkspace +
                                       RoomOf(layout.host_floats()) +
                                       RoomOf(layout.partial_floats()));
  }
  static float* OnHost(const DeviceCall& call) {
    return reinterpret_cast<float*>(call.pinned.data());
  }
  static Status Upload(size_t floats, const DeviceCall& call) {
    return CopyToDevice(OnDevice(call), OnHost(call), floats * sizeof(float), call.stream);
  }

  /// Orthonormalises the P at the beginning of `sums`, scaled, in pinned memory.
  static void MakeP(const DeviceLayout& layout, std::span<const std::byte> sums, float scale,
                    const DeviceCall& call) {
    size_t at = 0;
    for (const Factor& factor : layout.factors.factors) {
      if (factor.rank == 0) continue;
      std::vector<float> p = LoadFloats(sums, at, factor.first_floats());
      Orthonormalise(factor.rank, p);
      for (float& v : p) v *= scale;
      std::copy(p.begin(), p.end(), OnHost(call) + at);
      at += p.size();
    }
  }
  static std::vector<std::vector<float>> NextStarts(const DeviceLayout& layout,
                                                    std::span<const std::byte> sums) {
    std::vector<std::vector<float>> next;
    size_t at = layout.factors.first_floats;
    for (const Factor& factor : layout.factors.factors) {
      std::vector<float>& q = next.emplace_back();
      if (factor.rank > 0) {
        q = LoadFloats(sums, at, factor.last_floats());
        NormaliseRows(factor.rank, q);
      }
      at += factor.last_floats();
    }
    return next;
  }

  /// Launches a pass over tiles of `rows` x `columns` and finishes it; make(batch) is its program.
  template <class MakeProgram>
  static Status Pass(const DeviceLayout& layout, unsigned rows, unsigned columns,
                     const DeviceCall& call, const MakeProgram& make, unsigned* launches) {
    *launches = 0;
    return layout.InBatches(
        [&](const Matrix& m) { return TilesOfParts(m, rows, columns); },
        [&](const Batch& batch, uint64_t tiles) -> Status {
          const auto program = make(batch);
          WEIR_ASSIGN_OR_RETURN(const unsigned teams, Launch(call.stream, tiles, program));
          PassSums* const sum = LaunchSums(layout, call) + (*launches)++;
          return Launch(call.stream, 1, SumTeamsProgram{{}, program.in.partials, teams, sum})
              .status();
        });
  }
  static Status Total(const DeviceLayout& layout, bool left, float* to, const DeviceCall& call) {
    return layout.InBatches(
        [left](const Matrix& m) { return PartsOf(FloatsOf(m, left), kTileElements); },
        [&](const Batch& batch, uint64_t tiles) {
          return Launch(call.stream, tiles,
                        TotalProgram{{}, batch, left, Partial(layout, call), to})
              .status();
        },
        left);
  }

  static Status First(const DeviceLayout& layout, const PassInput& input, const DeviceCall& call,
                      std::span<std::byte> payload) {
    for (size_t index = 0; index < layout.matrices.size(); ++index) {
      const Factor& factor = layout.factors.factors[index];
      if (factor.rank == 0) continue;
      const std::vector<float> start = StartOf(factor, index, call.context);
      std::copy(start.begin(), start.end(), OnHost(call) + layout.matrices[index].start);
    }
    WEIR_RETURN_IF_ERROR(Upload(layout.starts, call));
    unsigned launches = 0;
    WEIR_RETURN_IF_ERROR(Pass(
        layout, kRows, kDotColumns, call,
        [&](const Batch& batch) {
          return LeftProgram{{input}, batch, OnDevice(call), Partial(layout, call)};
        },
        &launches));
    WEIR_RETURN_IF_ERROR(Total(layout, true, reinterpret_cast<float*>(payload.data()), call));
    return FinishPass(call, LaunchSums(layout, call), launches, payload);
  }

  static Status Last(const DeviceLayout& layout, const PassInput& input, const DeviceCall& call,
                     std::span<std::byte> payload) {
    MakeP(layout, call.context.previous, 1.0f, call);
    WEIR_RETURN_IF_ERROR(Upload(layout.factors.first_floats, call));
    auto* const last = reinterpret_cast<float*>(payload.data());
    WEIR_RETURN_IF_ERROR(layout.InBatches(
        [](const Matrix& m) { return m.rank == 0 ? 0 : TilesOfParts(m, kSumRows, kColumns); },
        [&](const Batch& batch, uint64_t tiles) {
          return Launch(call.stream, tiles,
                        RightProgram{{}, input, batch, OnDevice(call), Partial(layout, call)})
              .status();
        },
        /*left=*/false));
    WEIR_RETURN_IF_ERROR(Total(layout, false, last, call));
    unsigned launches = 0;
    const auto rest = [&]<bool kCounts>(const Batch& batch) {
      return RestProgram<kCounts>{{input}, batch, OnDevice(call), last};
    };
    WEIR_RETURN_IF_ERROR(
        call.bins != nullptr
            ? Pass(
                  layout, kRows, kColumns, call,
                  [&](const Batch& batch) { return rest.template operator()<true>(batch); },
                  &launches)
            : Pass(
                  layout, kRows, kColumns, call,
                  [&](const Batch& batch) { return rest.template operator()<false>(batch); },
                  &launches));
    return FinishPass(call, LaunchSums(layout, call), launches, payload);
  }

  const Codec& host_;
};

}  // namespace

void AddPowerSgd(std::vector<const DeviceCodec*>& codecs) {
  codecs.push_back(new DevicePowerSgd(**Codecs().Find("power_sgd")));
}

}  // namespace weir::cuda
