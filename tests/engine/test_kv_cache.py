"""The block pool and its manager: against a model as a state machine, and the promises that a newcomer would rely on."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine import IntegrityError
from engine.kv_cache import BlockPool, KVCacheManager
from engine.request import Request
from tests.engine.support import make_request


def key(name: int) -> bytes:
    return KVCacheManager.block_hash(b"", [name])


class PoolMachine(RuleBasedStateMachine):
    """A list in the order of reuse, a counter for each block and a dict of contents stand for the pool."""

    @initialize(num_blocks=st.integers(1, 7))
    def start(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.free = list(range(num_blocks))
        self.held: list[int] = []  # a block once for each holder
        self.found: dict[bytes, int] = {}

    def forget(self, block: int) -> None:
        self.found = {k: b for k, b in self.found.items() if b != block}

    @precondition(lambda self: self.free)
    @rule()
    def take(self) -> None:
        expected = self.free.pop(0)
        assert self.pool.take() == expected, "the longest unused block goes first"
        self.forget(expected)
        self.held.append(expected)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.held))
        self.pool.release(block)
        self.held.remove(block)
        if block not in self.held:
            self.free.append(block)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), name=st.integers(0, 4))
    def publish(self, data: st.DataObject, name: int) -> None:
        block = data.draw(st.sampled_from(self.held))
        self.pool.publish(block, key(name))
        if key(name) not in self.found and block not in self.found.values():
            self.found[key(name)] = block

    @precondition(lambda self: self.found)
    @rule(data=st.data())
    def hit(self, data: st.DataObject) -> None:
        block = self.found[data.draw(st.sampled_from(sorted(self.found)))]
        self.pool.share(block)
        if block in self.free:
            self.free.remove(block)
        self.held.append(block)

    @rule(data=st.data())
    def unpublish(self, data: st.DataObject) -> None:
        block = data.draw(st.integers(0, self.pool.num_blocks - 1))
        self.pool.unpublish(block)
        self.forget(block)

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "pool"):
            return
        assert self.pool.num_free == len(self.free)
        assert self.pool.num_free + len(set(self.held)) == self.pool.num_blocks
        assert self.pool.num_cached == len(set(self.free) & set(self.found.values()))
        for name in range(5):
            assert self.pool.find(key(name)) == self.found.get(key(name))
        self.pool.check([[block] for block in self.held])


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_block_is_not_released_more_often_than_it_was_taken() -> None:
    pool = BlockPool(2)
    block = pool.take()
    pool.release(block)
    with pytest.raises(AssertionError, match="released more often"):
        pool.release(block)


def test_equal_content_is_published_once() -> None:
    pool = BlockPool(3)
    first, second = pool.take(), pool.take()
    pool.publish(first, key(1))
    pool.publish(second, key(1))
    assert pool.find(key(1)) == first
    pool.unpublish(second)
    assert pool.find(key(1)) == first, "the one without a hash does not take the other's away"


@pytest.mark.parametrize(
    "damage",
    [
        lambda pool: pool.ref_counts.__setitem__(0, 2),
        lambda pool: pool._free.__setitem__(0, None),
        lambda pool: pool._free.pop(1),
        lambda pool: pool._block_of_hash.__setitem__(key(1), 1),
    ],
    ids=["counted-twice", "held-and-free", "neither-held-nor-free", "hash-leads-elsewhere"],
)
def test_check_finds(damage: object) -> None:
    pool = BlockPool(3)
    block = pool.take()
    pool.publish(block, key(1))
    pool.check([[block]])
    damage(pool)  # type: ignore[operator]
    with pytest.raises(IntegrityError):
        pool.check([[block]])


# --- the manager ---------------------------------------------------------------------------------------------------------


def running(manager: KVCacheManager, prompt: list[int], output: list[int] | None = None, *, committed: int = 0) -> Request:
    request = make_request(prompt=prompt)
    request.output_token_ids = list(output or [])
    manager.allocate(request, request.num_tokens)
    request.num_committed_tokens = committed
    manager.publish_committed(request)
    return request


@given(num_tokens=st.integers(0, 40), have=st.integers(0, 40), block_size=st.integers(1, 9))
@settings(deadline=None)
def test_allocation_covers_the_positions_and_no_block_more(num_tokens: int, have: int, block_size: int) -> None:
    manager = KVCacheManager(50, block_size, True)
    request = make_request()
    manager.allocate(request, have)
    new = manager.allocate(request, num_tokens)
    positions = max(num_tokens, have)
    assert len(request.block_ids) * block_size >= positions > (len(request.block_ids) - 1) * block_size or positions == 0
    assert request.block_ids[len(request.block_ids) - len(new) :] == list(new)
    assert len(set(request.block_ids)) == len(request.block_ids)


def test_can_allocate_says_the_truth_at_the_edge() -> None:
    manager = KVCacheManager(3, 4, False)
    request = make_request()
    assert manager.can_allocate(request, 12)
    assert not manager.can_allocate(request, 13)
    manager.allocate(request, 9)
    assert manager.can_allocate(request, 12)


@given(
    block_size=st.integers(1, 5),
    prompt=st.lists(st.integers(0, 3), min_size=1, max_size=20),
    other=st.lists(st.integers(0, 3), min_size=1, max_size=20),
    committed=st.integers(0, 20),
)
@settings(deadline=None)
def test_a_hit_is_the_longest_committed_common_prefix_in_whole_blocks(
    block_size: int, prompt: list[int], other: list[int], committed: int
) -> None:
    """K-05: what is not committed cannot be found; one token is always left over for the model."""
    manager = KVCacheManager(64, block_size, True)
    committed = min(committed, len(prompt))
    first = running(manager, prompt, committed=committed)
    second = make_request(prompt=other)
    hit = manager.take_cached_prefix(second, other)
    common = next((i for i, (a, b) in enumerate(zip(prompt, other, strict=False)) if a != b), min(len(prompt), len(other)))
    assert hit == min(common, committed, len(other) - 1) // block_size * block_size
    assert second.block_ids == first.block_ids[: hit // block_size]
    manager.pool.check([first.block_ids, second.block_ids])


def test_the_content_of_a_block_includes_all_before_it() -> None:
    manager = KVCacheManager(8, 2, True)
    running(manager, [1, 1, 5, 5, 0], committed=4)
    assert manager.take_cached_prefix(make_request(), [2, 2, 5, 5, 0]) == 0


def test_output_is_published_as_it_is_committed() -> None:
    manager = KVCacheManager(8, 2, True)
    request = running(manager, [1, 2, 3], [4, 5], committed=3)
    assert manager.take_cached_prefix(make_request(), [1, 2, 3, 4, 9]) == 2
    request.num_committed_tokens = 4
    manager.publish_committed(request)
    assert manager.take_cached_prefix(make_request(), [1, 2, 3, 4, 9]) == 4


def test_the_head_of_a_prefix_outlives_its_tail() -> None:
    manager = KVCacheManager(4, 2, True)
    prompt = [1, 2, 3, 4, 5, 6, 7]
    manager.release(running(manager, prompt, committed=7))
    assert (manager.pool.num_free, manager.pool.num_cached) == (4, 3)
    taken = make_request("other")
    manager.allocate(taken, 4)  # the block without a hash and the last one of the prefix
    assert manager.take_cached_prefix(make_request(), prompt) == 4


def test_a_shared_block_is_free_after_its_last_holder() -> None:
    manager = KVCacheManager(4, 2, True)
    first = running(manager, [1, 2, 3], committed=2)
    second = make_request("second")
    manager.take_cached_prefix(second, [1, 2, 9])
    shared = second.block_ids[0]
    manager.release(first)
    assert manager.pool.ref_counts[shared] == 1
    manager.pool.check([second.block_ids])
    manager.release(second)
    assert (manager.pool.num_free, manager.pool.find(KVCacheManager.block_hash(b"", [1, 2]))) == (4, shared)


def test_a_released_request_keeps_nothing() -> None:
    manager = KVCacheManager(4, 2, True)
    request = running(manager, [1, 2, 3], committed=2)
    manager.release(request)
    assert (request.block_ids, request.block_hashes) == ([], [])
    assert manager.take_cached_prefix(request, [1, 2, 3]) == 2, "and may come back to its own blocks"


def test_a_forgotten_request_is_not_found_again() -> None:
    manager = KVCacheManager(4, 2, True)
    request = running(manager, [1, 2, 3, 4, 5], committed=4)
    manager.forget(request)
    assert manager.take_cached_prefix(make_request(), [1, 2, 3, 4, 5]) == 0


def test_without_prefix_caching_nothing_is_published_or_found() -> None:
    manager = KVCacheManager(4, 2, False)
    running(manager, [1, 2, 3], committed=3)
    assert manager.pool.num_cached == 0
    assert manager.take_cached_prefix(make_request(), [1, 2, 3]) == 0


@pytest.mark.parametrize(("drops", "tokens"), [(False, 4), (True, 2)], ids=["keeps", "drops"])
def test_a_drafter_that_reads_ahead_has_its_last_block_computed_anew(drops: bool, tokens: int) -> None:
    """Its entries of that block hold only where the token behind the block is the same too."""
    manager = KVCacheManager(8, 2, True, drop_last_cached_block=drops)
    first = running(manager, [1, 2, 3, 4, 5], committed=4)
    second = make_request("second")
    assert manager.take_cached_prefix(second, [1, 2, 3, 4, 9]) == tokens
    assert second.block_ids == first.block_ids[: tokens // 2]
    assert len(second.block_hashes) == tokens // 2
    manager.pool.check([first.block_ids, second.block_ids])


def test_a_miss_leaves_nothing_to_drop() -> None:
    manager = KVCacheManager(8, 2, True, drop_last_cached_block=True)
    assert manager.take_cached_prefix(make_request(), [1, 2, 3, 4, 5]) == 0
