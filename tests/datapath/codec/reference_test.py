#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The codecs against NumPy, on recorded gradients.

Each function of REFERENCES computes, from the paper's formula and as plainly as NumPy allows, what
a codec has to deliver; shared kernels, payload formats and the C++ tests' own arithmetic play no
part. A codec without an entry is listed; one of MUST_HAVE without an entry fails. Exit status 77:
NumPy is missing.

    tests/datapath/codec/reference_test.py [NAME...]
"""
import pathlib
import sys

try:
    import numpy as np
except ImportError:
    print("skipped: /usr/bin/python3 has no numpy")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/support"))

import codec_shim  # noqa: E402

RATIOS = (0.1, 0.01)
# Each entry: names, of which one is registered and has a reference.
MUST_HAVE = (("identity",), ("fp16",), ("bf16",), ("top_k",), ("shared_top_k",), ("random_k",),
             ("qsgd",))


class Case:
    """One codec at one setting on one gradient."""

    def __init__(self, lib, traits, name, x, bits, ratio):
        self.lib, self.traits, self.name, self.x = lib, traits, name, x
        self.bits, self.ratio = bits, ratio
        self.failures = []

    def open(self, **options):
        return codec_shim.Codec(self.lib, self.traits["name"], self.x.size, ratio=self.ratio,
                                bits=self.bits, **options)

    def round_trip(self, seed=1, **options):
        with self.open(**options) as codec:
            codec.encode(self.x, seed=seed)
            return codec.decode()

    def check(self, condition, message):
        if not condition:
            self.failures.append(message)

    def close_to(self, got, expected, relative, message):
        """All values within `relative` of the expected ones' largest magnitude."""
        worst = np.abs(got.astype(np.float64) - expected).max() / np.abs(expected).max()
        self.check(worst <= relative, f"{message}: off by {worst:.3g} of the largest value")

    def unbiased(self, expected, grid_step, seeds=64):
        """The mean over seeds approaches `expected` as that of independent roundings does.

        grid_step: an array, the distance of the two neighbours of each element; rounding varies by
        at most a quarter of its square. Mean and mean square of the normalised errors have
        expectation 0 and at most 1: six standard deviations of slack.
        """
        total = np.zeros(self.x.size)
        with self.open() as codec:
            for seed in range(seeds):
                codec.encode(self.x, seed=seed + 100)
                total += codec.decode()
        used = grid_step > 0
        fraction = np.abs(expected[used]) / grid_step[used]
        fraction -= np.floor(fraction)
        deviation = np.sqrt(fraction * (1 - fraction)) * grid_step[used]
        wide = deviation > 0.02 * grid_step[used]
        error = (total / seeds - expected)[used][wide] / deviation[wide] * np.sqrt(seeds)
        slack = 6 / np.sqrt(error.size)
        self.check(error.size > 100, "too few values between grid points to judge")
        self.check(abs(error.mean()) < slack, f"biased: mean error {error.mean():.3g} sigma")
        spread = float((error ** 2).mean())
        self.check(abs(spread - 1) < 2 * slack + 0.05, f"variance {spread:.3g} of the expected")


# --- Exact and half precision ---------------------------------------------------------------------

def identity(case):
    case.check(np.array_equal(case.round_trip(), case.x), "values changed")


def fp16(case):
    # The gradients have the magnitudes that loss scales of 2^40 and 2^-60 give.
    for world, factor in ((1, 1.0), (4, 2.0 ** 40), (7, 2.0 ** -60)):
        x = (case.x * factor).astype(np.float32)
        headroom = np.ceil(np.log2(world))
        greatest = np.abs(x).max().astype(np.float64)
        scale = 2.0 ** (14 - headroom - np.floor(np.log2(greatest)))
        largest = (2 - 2.0 ** -10) * 2.0 ** (14 - headroom)
        lanes = np.clip(x.astype(np.float64) * scale, -largest, largest).astype(np.float16)
        expected = lanes.astype(np.float64) / scale
        with case.open(world=world) as codec:
            codec.encode(x)
            got = codec.decode()
        case.check(np.array_equal(got, expected), f"world {world}: not the nearest half")


def bf16(case):
    pattern = case.x.view(np.uint32).astype(np.uint64)
    rounded = (pattern + 0x7FFF + ((pattern >> 16) & 1)) & 0xFFFF0000
    expected = rounded.astype(np.uint32).view(np.float32)
    case.check(np.array_equal(case.round_trip(), expected), "not the nearest bfloat16")


# --- Selection ------------------------------------------------------------------------------------

def threshold_selection(case):
    """Kept values are larger than dropped ones, and arrive as precisely as their bits allow."""
    with case.open() as codec:
        codec.encode(case.x)
        got = codec.decode()
        kept = got != 0
        try:
            kept[codec.indices()] = True  # a narrow value may have become zero
        except codec_shim.CodecError:
            pass
    if not kept.any():
        case.check(False, "nothing is kept")
        return kept
    magnitude = np.abs(case.x)
    least, most = magnitude[kept].min(), magnitude[~kept].max(initial=0)
    case.check(least >= most * (1 - 1e-6), f"keeps {least:.3g} but drops {most:.3g}")
    error = np.abs(got[kept] - case.x[kept])
    if case.bits in (0, 16):
        worst = np.median(error / magnitude[kept])
        case.check(worst <= 2.0 ** -11, f"kept values are off by {worst:.3g} of themselves")
    else:
        worst = error.max() / magnitude.max()
        case.check(worst <= 2.0 ** (1 - case.bits), f"kept values are off by {worst:.3g}")
    return kept


def adaq(case):
    """Positive and negative values that are kept arrive as the mean of their sign."""
    with case.open() as codec:
        codec.encode(case.x)
        got, indices = codec.decode().astype(np.float64), codec.indices()
    kept = np.zeros(case.x.size, bool)
    kept[indices] = True
    exact_overlap(case, kept)
    expected = np.zeros(case.x.size)
    for sign in (kept & (case.x > 0), kept & (case.x < 0)):
        if sign.any():
            expected[sign] = case.x[sign].astype(np.float64).mean()
    case.close_to(got, expected, 1e-5, "the means of both signs")


def sketchml(case):
    """Kept values arrive as the mean of their bucket; buckets do not overlap and none holds too many."""
    with case.open() as codec:
        codec.encode(case.x)
        got, indices = codec.decode(), codec.indices()
    kept = np.zeros(case.x.size, bool)
    kept[indices] = True
    exact_overlap(case, kept)
    values, means = case.x[kept].astype(np.float64), got[kept]
    order = np.argsort(values)
    case.check(np.all(np.diff(means[order]) >= 0), "buckets overlap")
    stands_for, bucket, counts = np.unique(means, return_inverse=True, return_counts=True)
    expected = np.bincount(bucket, weights=values) / counts
    case.close_to(stands_for, expected, 1e-5, "the mean of a bucket")
    buckets = min(max(8, values.size // 64), 2 ** case.bits if case.bits == 6 else 256)
    case.check(stands_for.size <= buckets, f"{stands_for.size} buckets, {buckets} allowed")
    # A bucket holds its share; the histogram's bins, which it is made of, may double that.
    share = 2 * max(1, values.size / buckets)
    case.check(np.median(counts) <= share, f"half of the buckets hold more than {share:.0f}")


def target(case):
    return min(max(1, int(case.ratio * case.x.size)), int(np.count_nonzero(case.x)))


def exact_overlap(case, kept):
    k = target(case)
    exact = np.argpartition(-np.abs(case.x), k - 1)[:k]
    overlap = kept[exact].mean()
    case.check(overlap >= 0.9, f"only {overlap:.3f} of the exact selection is kept")
    case.check(kept.sum() <= 1.1 * k, f"keeps {kept.sum()} for {k}")


def top_k(case):
    exact_overlap(case, threshold_selection(case))


def shared_top_k(case):
    with case.open() as codec:
        codec.encode(case.x)
        indices = codec.indices()
    kept = np.zeros(case.x.size, bool)
    kept[indices] = True
    case.check(np.all(np.diff(indices.astype(np.int64)) > 0), "positions are not ascending")
    exact_overlap(case, kept)


def random_k(case):
    k = max(1, int(case.ratio * case.x.size))
    got = case.round_trip()
    at = np.flatnonzero(got)
    case.check(np.array_equal(got[at], case.x[at]), "kept values changed")
    edges = np.arange(k + 1) * case.x.size // k
    counts = np.histogram(at, edges)[0]
    case.check(counts.max() <= 1, "two positions in one stratum")
    if np.count_nonzero(case.x) == case.x.size:
        case.check(at.size == k, f"{at.size} positions for {k}")
    frequency = np.zeros(case.x.size)
    seeds = 200
    with case.open() as codec:
        for seed in range(seeds):
            codec.encode(case.x, seed=seed)
            frequency += codec.decode() != 0
    share = frequency[case.x != 0].mean() / seeds
    case.check(abs(share / case.ratio - 1) < 0.05, f"a position is drawn {share:.4g} of the time")


# --- Stochastic grids -----------------------------------------------------------------------------

def shared_grid(case):
    """QSGD with the max norm: a multiple of max / levels, one of the two neighbours, unbiased."""
    lane_bits = case.bits or 8
    levels = 2 ** (lane_bits - 1) - 1
    step = float(np.abs(case.x).max()) / levels
    got = case.round_trip().astype(np.float64)
    code = got / step
    case.check(np.abs(code - np.round(code)).max() < 1e-3 + levels * 1e-6, "values off the grid")
    case.check(np.abs(got - case.x).max() < step * 1.001, "further away than the neighbour")
    if lane_bits <= 8:
        case.unbiased(case.x.astype(np.float64), np.full(case.x.size, step))


def terngrad(case):
    x = case.x.astype(np.float64)
    scale = min(np.abs(x).max(), 2.5 * np.sqrt((x ** 2).mean()))
    got = case.round_trip().astype(np.float64)
    case.close_to(np.unique(np.abs(got))[-1:], np.array([scale]), 1e-5, "scale")
    case.check(np.unique(got).size <= 3, "more than three values")
    case.check(np.all(got * x >= 0), "a sign changed")
    case.unbiased(np.clip(x, -scale, scale), np.full(x.size, scale))


def natural(case, least=2.0 ** -100):
    x = np.abs(case.x.astype(np.float64))
    used = x > least
    low = np.zeros(x.size)
    low[used] = 2.0 ** np.floor(np.log2(x[used]))
    got = case.round_trip().astype(np.float64)
    size = np.abs(got[used])
    case.check(np.all((size == low[used]) | (size == 2 * low[used])), "not a neighbouring power")
    case.check(np.all(np.sign(got[used]) == np.sign(case.x[used])), "a sign changed")
    case.unbiased(np.where(used, case.x, 0).astype(np.float64), low)


def qsgd_exponential(case):
    """One rank's lanes; how they add has no plain formula but the mean, which C++ tests look at."""
    natural(case, least=2.0 ** -36 * np.abs(case.x).max())


def inceptionn(case):
    x = case.x.astype(np.float64)
    bound = 2.0 ** -case.bits
    step = np.where(np.abs(x) < 128 * bound, bound, 2.0 ** -15)
    expected = np.where(np.abs(x) < 1, np.trunc(x / step) * step, x)
    case.check(np.array_equal(case.round_trip(), expected), "not what the formula gives")


def qsgd_bucketed(case):
    x = case.x.astype(np.float64)
    if case.bits == 1:
        largest = np.abs(x.reshape(-1, 512)).max(axis=1).repeat(512)
        got = case.round_trip().astype(np.float64)
        case.check(np.array_equal(np.abs(got), largest), "not the largest magnitude")
        # Bits of chance (1 + x / m) / 2 have the variance m^2 - x^2; their sum strays accordingly.
        chances = (largest ** 2 - x ** 2).sum() ** 0.5
        case.check(abs((got - x).sum()) < 5 * chances, "the mean is off")
        case.check(abs(((got - x) * np.sign(x)).sum()) < 5 * chances, "shrinks or stretches")
        return
    levels = 2 ** (case.bits - 1) - 1
    norms = np.sqrt((x.reshape(-1, 512) ** 2).sum(axis=1))
    step = np.repeat(norms / levels, 512)
    got = case.round_trip().astype(np.float64)
    case.check(np.all(np.abs(got - x) <= step * 1.001), "further away than the neighbour")
    if case.bits <= 8:
        case.unbiased(x, step)


# --- Signs and buckets ----------------------------------------------------------------------------

def signs(case):
    expected = np.where(case.x < 0, -1.0, 1.0) * np.abs(case.x.astype(np.float64)).mean()
    got = case.round_trip()
    used = case.x != 0
    case.close_to(got[used], expected[used], 1e-4, "sign times mean magnitude")


def signum(case):
    """Majority vote with moving sums, three steps of three ranks."""
    world, rates, sums = 3, (1.0, -0.4, 0.3), [np.zeros(case.x.size) for _ in range(3)]
    flips = np.random.default_rng(1).choice(np.float32([-1, 1]), (world, case.x.size))
    ranks = codec_shim.World(case.lib, "signum", case.x.size, world)
    mean = np.zeros(case.x.size, np.float32)
    for rate in rates:
        gradients = list(flips * case.x * np.float32(rate) * np.float32([[1], [0.5], [2]]))
        flips = np.roll(flips, 977, axis=1)
        sums = [0.9 * m + 0.1 * g.astype(np.float64) for m, g in zip(sums, gradients)]
        ranks.exchange(gradients, mean)
        votes = sum(np.where(m < 0, -1, 1) for m in sums)
        sure = np.all([np.abs(m) > 1e-6 * np.abs(m).max() for m in sums], axis=0)
        expected = np.sign(votes) * max(np.abs(m).mean() for m in sums)
        case.close_to(mean[sure], expected[sure], 1e-4, "the majority's sign times the magnitude")
    ranks.close()


def ef_signsgd(case):
    blocks = case.x.astype(np.float64).reshape(-1, 2048)
    expected = np.where(blocks < 0, -1.0, 1.0) * np.abs(blocks).mean(axis=1, keepdims=True)
    case.close_to(case.round_trip(), expected.ravel(), 1e-5, "sign times the block's mean")


def onebit(case):
    blocks = case.x.astype(np.float64).reshape(-1, 2048)
    negative = blocks < 0
    means = [np.where(m, blocks, 0).sum(axis=1) / np.maximum(1, m.sum(axis=1))
             for m in (negative, ~negative)]
    expected = np.where(negative, means[0][:, None], means[1][:, None])
    case.close_to(case.round_trip(), expected.ravel(), 1e-5, "the means of both signs")


def u8bit(case):
    """A decade below the block's largest magnitude and an equal part of it, by its middle."""
    blocks = np.abs(case.x.astype(np.float64)).reshape(-1, 2048)
    largest = blocks.max(axis=1, keepdims=True)
    share = np.divide(blocks, largest, out=np.zeros_like(blocks), where=largest > 0)
    decade = np.clip(np.floor(-np.log10(np.maximum(share, 1e-30)) + 1e-9), 0, 7)
    width = 10.0 ** -decade * 0.9 / 2 ** np.maximum(6 - decade, 0)
    got = case.round_trip().astype(np.float64)
    case.check(np.all(got * case.x >= 0), "a sign changed")
    error = np.abs(np.abs(got).reshape(-1, 2048) - blocks)
    told = decade < 7
    # Values next to a limit may fall either way in single precision.
    case.check(np.all((error <= 0.5001 * width * largest)[told]), "not the middle of its part")
    case.check(np.all((error <= 1.0001e-7 * largest)[~told]), "small values became large")
    grid = np.divide(np.abs(got).reshape(-1, 2048), largest, out=np.zeros_like(blocks),
                     where=largest > 0)
    middles = np.concatenate([10.0 ** -k * (0.1 + 0.9 * (np.arange(2 ** (6 - k)) + 0.5) / 2 ** (6 - k))
                              for k in range(7)])
    nearest = np.abs(np.log(np.maximum(grid, 1e-30))[..., None] - np.log(middles)).min(axis=-1)
    case.check(np.all((nearest < 1e-5) | (grid == 0)), "values that no code stands for")


def minmax(case):
    blocks = case.x.astype(np.float64).reshape(-1, 512)
    low, high = blocks.min(axis=1, keepdims=True), blocks.max(axis=1, keepdims=True)
    step = (high - low) / (2 ** case.bits - 1)
    got = case.round_trip().astype(np.float64).reshape(-1, 512)
    # Ties may fall either way in single precision: not further than half a step is what counts.
    limit = 0.5001 * step + 1e-6 * np.maximum(np.abs(low), np.abs(high))
    case.check(np.all(np.abs(got - blocks) <= limit), "further than half a step away")
    code = np.divide(got - low, step, out=np.zeros_like(got), where=step > 0)
    case.check(np.abs(code - np.round(code)).max() < 0.01, "values off the grid")


# --- Rotations and low rank -----------------------------------------------------------------------

def eden(case):
    """Unbiased: the error of the mean over seeds falls as their number grows. One bit: vNMSE pi/2 - 1."""
    x = case.x.astype(np.float64)
    energy, seeds, total, losses = (x ** 2).sum(), 50, np.zeros(case.x.size), []
    with case.open() as codec:
        for seed in range(seeds):
            codec.encode(case.x, seed=seed)
            got = codec.decode().astype(np.float64)
            losses.append(((got - x) ** 2).sum() / energy)
            total += got
    expected = np.pi / 2 - 1
    case.check(case.bits != 1 or abs(np.mean(losses) / expected - 1) < 0.1,
               f"normalised error {np.mean(losses):.4f}, expected {expected:.4f}")
    left = ((total / seeds - x) ** 2).sum() / energy
    case.check(left < 1.5 * np.mean(losses) / seeds,
               f"biased: {left:.4g} left after {seeds} seeds of {np.mean(losses):.3g}")


def mix64(z):
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def mix_seed(a, b):
    return mix64(mix64(a) ^ (b + np.uint64(0xD1B54A32D192ED03)))


def hadamard(rows):
    """The Walsh-Hadamard transform of every row."""
    rows, half = rows.copy(), 1
    while half < rows.shape[1]:
        pairs = rows.reshape(rows.shape[0], -1, 2, half)
        rows = np.stack((pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]), 2)
        rows, half = rows.reshape(rows.shape[0], -1), 2 * half
    return rows


def thc(case):
    """Lanes are neighbours of what the formulas of WIRE.md give, unbiased, and decode by them."""
    setting = next(s for s in case.traits["settings"] if s["bits"] == case.bits)
    levels = np.array(setting["lane_levels"], np.float64)
    uniform = levels.size == 0
    centre, reach = {8: (127, 3.75), 4: (7, 2.25), 16: (2047, 5.0)}[case.bits] if uniform else (29, 2.4177)
    levels = np.arange(2 * centre + 1.0) - centre if uniform else levels - centre
    rotations, seed = case.x.size // 1024, 7
    x = case.x.astype(np.float64).reshape(rotations, 1024)
    with np.errstate(over="ignore"):
        words = mix_seed(mix_seed(np.uint64(seed), np.uint64(0x726F74617465)),
                         np.arange(rotations * 16, dtype=np.uint64))
    bits = np.unpackbits(words.astype("<u8").view(np.uint8), bitorder="little")
    signs = 1.0 - 2.0 * bits.reshape(rotations, 1024)
    norm = np.sqrt((x ** 2).mean(axis=1, keepdims=True))
    unit = reach * norm / (centre * 32)  # what a lane of 1 stands for; 32 is the root of 1024
    sent = norm[:, 0] >= 2.0 ** -100  # others stand for zeros, whatever their lanes
    wanted = np.clip(hadamard(signs * x)[sent] / 1024 / unit[sent], -centre, centre)
    with case.open() as codec:
        codec.encode(case.x, seed=seed)
        got, payload = codec.decode(), np.frombuffer(codec.payload(), np.uint8)
    if case.bits == 4:
        octets = payload.view(np.int8).reshape(rotations, 512)
        lanes = np.concatenate(((octets << 4) >> 4, octets >> 4), axis=1).astype(np.float64)
    else:
        lanes = payload.view("<i2" if case.bits == 16 else np.int8).astype(np.float64)
        lanes = lanes.reshape(rotations, 1024)
    decoded = np.where(sent[:, None], signs * hadamard(lanes * unit), 0)
    case.close_to(got, decoded.ravel(), 1e-5, "what lanes stand for")
    lanes = lanes[sent]
    above = np.clip(np.searchsorted(levels, wanted, side="left"), 1, levels.size - 1)
    low, high = levels[above - 1], levels[above]
    slack = 2e-3 if case.bits == 16 else 1e-3  # single precision
    near = ((lanes == low) | (lanes == high) | (np.abs(lanes - wanted) < slack)
            | (np.minimum(wanted - low, high - wanted) < slack))
    case.check(np.all(near), f"{np.count_nonzero(~near)} lanes are no neighbours")
    deviation = np.sqrt(((high - wanted) * (wanted - low)).sum())
    case.check(abs((lanes - wanted).sum()) < 6 * deviation, "rounding is biased")
    case.check(abs(((lanes - wanted) * np.sign(wanted)).sum()) < 6 * deviation, "rounding shrinks")


def power_sgd(case):
    """Warm power iteration on one matrix approaches the best approximation of its rank."""
    matrix = case.x.astype(np.float64).reshape(256, 256)
    singular = np.linalg.svd(matrix, compute_uv=False)
    with case.open(stateful=True, shape=[(256, 256)]) as codec:
        for seed in range(30):
            codec.encode(case.x, seed=seed)
            got = codec.decode().astype(np.float64).reshape(256, 256)
    found = np.linalg.svd(got, compute_uv=False)
    rank = int((found > 1e-4 * found[0]).sum())
    case.check(1 <= rank <= 64, f"rank {rank} of what arrives")
    lost = ((got - matrix) ** 2).sum()
    best = (singular[rank:] ** 2).sum()
    energy = (singular ** 2).sum()
    case.check(lost >= best - 1e-5 * energy, f"better than any matrix of rank {rank}")
    case.check(lost <= best + 0.03 * energy, f"loses {lost / energy:.4f}, rank {rank} can do "
               f"{best / energy:.4f}")


REFERENCES = {
    "identity": identity, "fp16": fp16, "bf16": bf16,
    "top_k": top_k, "shared_top_k": shared_top_k, "random_k": random_k,
    **dict.fromkeys(("dgc", "sidco", "sidco:fit=e", "sidco:fit=gp", "sidco:fit=p", "threshold",
                     "threshold:selector=gaussian_k", "threshold:selector=redsync"),
                    threshold_selection),
    "qsgd": shared_grid, "qsgd:memory=none": shared_grid, "terngrad": terngrad,
    "natural": natural, "qsgd_bucketed": qsgd_bucketed, "qsgd:levels=exponential": qsgd_exponential,
    "inceptionn": inceptionn,
    "signsgd": signs, "ef_signsgd": ef_signsgd, "onebit": onebit, "minmax": minmax,
    "eden": eden, "power_sgd": power_sgd,
    "adaq": adaq, "sketchml": sketchml, "u8bit": u8bit, "signum": signum, "thc": thc,
    "thc_uniform": thc,
}


def cases_of(lib, traits, gradients):
    for name, x in gradients:
        for bits in codec_shim.settings_of(traits):
            ratios = [r for r in RATIOS if traits["ratio_min"] <= r <= traits["ratio_max"]]
            for ratio in (ratios if traits["uses_ratio"] else [1.0]):
                yield Case(lib, traits, name, x, bits, ratio)


def run(lib, traits, gradients):
    """Runs one codec's reference; returns the number of failed cases."""
    failed, count = 0, 0
    for case in cases_of(lib, traits, gradients):
        try:
            REFERENCES[traits["name"]](case)
        except codec_shim.CodecError as error:
            case.failures.append(str(error))
        count += 1
        failed += bool(case.failures)
        for failure in case.failures:
            print(f"FAILED {traits['name']} bits {case.bits} ratio {case.ratio:g} on {case.name}: "
                  f"{failure}")
    print(f"{'ok' if failed == 0 else 'FAILED':6} {traits['name']}: {count} cases", flush=True)
    return failed


def main():
    lib = codec_shim.load()
    registered = codec_shim.all_traits(lib)
    files = sorted((ROOT / "tests/data/gradients").glob("*.f32"))
    gradients = [(path.stem, np.fromfile(path, "<f4")) for path in files]
    chosen = sys.argv[1:] or sorted(registered)
    failed = 0
    if not gradients:
        print("FAILED: no recorded gradients")
        failed += 1
    for names in MUST_HAVE:
        if not any(name in registered and name in REFERENCES for name in names):
            print(f"FAILED: {' or '.join(names)} is not registered or has no reference")
            failed += 1
    for name in chosen:
        if name in REFERENCES:
            failed += run(lib, registered[name], gradients)
    without = [name for name in chosen if name not in REFERENCES]
    if without:
        print(f"without a reference: {', '.join(without)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
