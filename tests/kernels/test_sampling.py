"""Random numbers at their addresses, the filters against a slow independent version, and the distribution of the samples."""

from __future__ import annotations

import ctypes
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.interface import DrawPurpose, Kernels
from kernels.native import load_library
from kernels.random import philox
from tests.kernels.support import BACKENDS, NATIVE, assert_same_bits, few, kernels_of, normal, seeds

# counter, key, result: the known answers that Random123 publishes for philox4x32-10.
KNOWN_ANSWERS = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.fixture(params=BACKENDS, scope="module")
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return kernels_of(request.param)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_known_answers(counter: list[int], key: list[int], expected: list[int]) -> None:
    words = philox([torch.tensor(c) for c in counter], [torch.tensor(k) for k in key])
    assert [int(word) for word in words] == expected
    for name in NATIVE:
        out = (ctypes.c_uint32 * 4)()
        load_library(name.removeprefix("native-")).ls_philox((ctypes.c_uint32 * 4)(*counter), (ctypes.c_uint32 * 2)(*key), out)
        assert list(out) == expected


def test_gumbel_is_the_documented_function_of_its_address(kernels: Kernels) -> None:
    seed, sample_index, position, purpose, vocab_size = -123456789012345, -3, 2**40 + 77, DrawPurpose.RECOVERY, 5
    noise = kernels.gumbel(
        torch.tensor([seed]), torch.tensor([sample_index], dtype=torch.int32), torch.tensor([position]), purpose, vocab_size
    )
    for token in range(vocab_size):
        counter = [token // 2, position % 2**32, position >> 32 | purpose << 24, sample_index % 2**32]
        words = philox([torch.tensor(c) for c in counter], [torch.tensor(seed % 2**32), torch.tensor(seed % 2**64 >> 32)])
        low, high = (int(word) for word in words[2 * (token % 2) : 2 * (token % 2) + 2])
        u = (((high << 32 | low) >> 12) + 0.5) / 2**52
        assert noise[0, token].item() == pytest.approx(-math.log(-math.log(u)), rel=1e-14)


def test_every_part_of_the_address_matters(kernels: Kernels) -> None:
    """Neighbouring addresses, and those that differ in one high bit only, share no draw."""
    seeds_, indices, positions = [0, 1, 2**32, -1], [0, 1, -1], [0, 1, 2**32, 2**55]
    seen: set[float] = set()
    count = 0
    for purpose in DrawPurpose:
        cells = [(s, i, p) for s in seeds_ for i in indices for p in positions]
        s, i, p = (torch.tensor(column) for column in zip(*cells, strict=True))
        noise = kernels.gumbel(s, i.int(), p, purpose, 33)
        seen.update(noise.flatten().tolist())
        count += noise.numel()
    assert len(seen) == count


def test_gumbel_distribution(kernels: Kernels) -> None:
    noise = kernels.gumbel(
        torch.tensor([7]), torch.zeros(1, dtype=torch.int32), torch.tensor([3]), DrawPurpose.TARGET, 100_000
    )[0]
    assert noise.isfinite().all()
    uniform = (-(-noise).exp()).exp().sort().values  # back through the distribution function
    distance = (uniform - (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000).abs().max()
    assert distance < 1.63 / math.sqrt(100_000)  # Kolmogorov-Smirnov at 1 %, fixed seed


def slow_kept(logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> set[int]:
    """The filters, written once more and plainly: a sorted list of probabilities."""
    scaled = [x / temperature for x in logits]
    largest = max(scaled)
    weights = [math.exp(x - largest) for x in scaled]
    order = sorted((i for i, w in enumerate(weights) if w >= min_p), key=lambda i: (-logits[i], i))
    if top_k > 0:
        order = order[:top_k]
    total, mass, kept = math.fsum(weights[i] for i in order), 0.0, set()
    for i in order:
        kept.add(i)
        mass += weights[i]
        if mass >= top_p * total:
            break
    return kept


@few
@given(
    seeds,
    st.sampled_from([1, 2, 17, 300]),
    st.sampled_from([0, 1, 3, 16, 299]),
    st.sampled_from([1.0, 0.9, 0.53, 0.01]),
    st.sampled_from([0.0, 0.013, 0.4, 1.0]),
)
def test_filters_keep_what_a_slow_version_keeps(
    kernels: Kernels, seed: int, v: int, top_k: int, top_p: float, min_p: float
) -> None:
    """Over many draws the sampled tokens are exactly argmax over the kept set of scaled logit + noise."""
    r, temperature = 8, 0.8
    logits = (normal(seed, 1, v) * 8).round() / 4  # with ties
    temperature_f32, top_p_f32, min_p_f32 = (torch.full((r,), value) for value in (temperature, top_p, min_p))
    kept = slow_kept(logits[0].tolist(), temperature_f32[0].item(), top_k, top_p_f32[0].item(), min_p_f32[0].item())
    address = (torch.arange(r) + seed, torch.zeros(r, dtype=torch.int32), torch.arange(r))
    noise = kernels.gumbel(*address, DrawPurpose.TARGET, v)
    scores = logits.double() / temperature_f32[0].double() + noise
    outside = torch.tensor([i not in kept for i in range(v)])
    expected = scores.masked_fill(outside, -torch.inf).argmax(dim=1)
    limits = (torch.full((r,), top_k, dtype=torch.int32), top_p_f32, min_p_f32)
    tokens = kernels.sample(logits.repeat(r, 1), temperature_f32, *limits, *address, DrawPurpose.TARGET)
    assert_same_bits(tokens, expected)


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), [(0, 1.0, 0.0), (4, 1.0, 0.0), (0, 0.8, 0.0), (0, 1.0, 0.1)])
def test_distribution(top_k: int, top_p: float, min_p: float) -> None:
    """Chi-square of 4,000 samples against the filtered softmax; fixed seeds, the limit is the 99.9 % quantile for df 7."""
    kernels = kernels_of(BACKENDS[0])  # the others give the same tokens
    r, logits = 4000, torch.tensor([1.0, 0.5, -0.5, 2.0, 0.0, -1.0, 1.5, 0.25])
    kept = slow_kept(logits.tolist(), 1.3, top_k, top_p, min_p)
    probs = torch.tensor([math.exp(x / 1.3) if i in kept else 0.0 for i, x in enumerate(logits.tolist())])
    expected = r * probs / probs.sum()
    rows = torch.ones(r)
    limits = (torch.full((r,), top_k, dtype=torch.int32), rows * top_p, rows * min_p)
    address = (torch.full((r,), 11), torch.zeros(r, dtype=torch.int32), torch.arange(r))
    tokens = kernels.sample(logits.repeat(r, 1), rows * 1.3, *limits, *address, DrawPurpose.TARGET)
    counts = tokens.bincount(minlength=8)
    assert counts[expected == 0].sum() == 0
    assert ((counts - expected).square()[expected > 0] / expected[expected > 0]).sum() < 24.3


def test_greedy_draws_nothing_and_invalid_rows_are_minus_one(kernels: Kernels) -> None:
    logits = torch.tensor(
        [[1.0, 3.0, 3.0], [1.0, torch.nan, 0.0], [torch.inf, 0.0, 0.0], [-torch.inf] * 3, [-torch.inf, 2.0, 0.0]]
    )
    assert kernels.argmax(logits).tolist() == [1, -1, -1, -1, 1]
    r = len(logits)
    limits = (torch.zeros(r, dtype=torch.int32), torch.ones(r), torch.zeros(r))
    for temperature, top_k in ((0.0, 0), (1.0, 1)):
        limits = (torch.full((r,), top_k, dtype=torch.int32), torch.ones(r), torch.zeros(r))
        for seed in range(5):
            address = (torch.full((r,), seed), torch.zeros(r, dtype=torch.int32), torch.zeros(r, dtype=torch.int64))
            tokens = kernels.sample(logits, torch.full((r,), temperature), *limits, *address, DrawPurpose.TARGET)
            assert tokens.tolist() == [1, -1, -1, -1, 1]


def test_argmax_of_ties_far_apart(kernels: Kernels) -> None:
    logits = normal(0, 1, 2000)
    logits[0, [700, 1300, 1999]] = 9.0
    assert kernels.argmax(logits).tolist() == [700]


@pytest.mark.parametrize(
    ("logits", "top_k", "top_p"),
    [
        ([1e30] * 2000, 0, 1.0),  # so large that adding the noise changes nothing
        ([1e30] * 2000, 1999, 1.0),
        ([-0.0, 0.0, -0.0], 1, 1.0),  # zeros tie whatever their signs
        ([0.0, -0.0, 0.0], 1, 1.0),
        ([2.0, 2.0], 0, 0.5),  # the first one reaches the mass exactly
    ],
    ids=["noise-vanishes", "noise-vanishes-top-k", "minus-zero-first", "zero-first", "mass-exactly"],
)
def test_ties_go_to_the_lower_id(kernels: Kernels, logits: list[float], top_k: int, top_p: float) -> None:
    r = 12
    limits = (torch.full((r,), top_k, dtype=torch.int32), torch.full((r,), top_p), torch.zeros(r))
    address = (torch.arange(r), torch.zeros(r, dtype=torch.int32), torch.arange(r))
    tokens = kernels.sample(torch.tensor([logits] * r), torch.ones(r), *limits, *address, DrawPurpose.TARGET)
    assert tokens.tolist() == [0] * r


def test_a_large_vocabulary_agrees_with_its_filters(kernels: Kernels) -> None:
    """Every path of the selection (more than twice k candidates, several rounds of top_p) on 20,000 tokens."""
    r, v = 3, 20_000
    logits = normal(0, r, v)  # flat: top_p keeps thousands
    address = (torch.arange(r), torch.zeros(r, dtype=torch.int32), torch.arange(r))
    for top_k, top_p in ((1000, 1.0), (15_000, 0.7), (0, 0.6)):
        limits = (torch.full((r,), top_k, dtype=torch.int32), torch.full((r,), top_p), torch.zeros(r))
        tokens = kernels.sample(logits, torch.ones(r), *limits, *address, DrawPurpose.DRAFT)
        noise = kernels.gumbel(*address, DrawPurpose.DRAFT, v)
        for row in range(r):
            kept = sorted(slow_kept(logits[row].tolist(), 1.0, top_k, float(limits[1][row]), 0.0))
            scores = (logits[row].double() + noise[row])[kept]
            assert tokens[row] == kept[int(scores.argmax())]
