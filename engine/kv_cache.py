"""KV blocks: who holds which, which ones can be found again by their content, and in what order they are reused. Host only.

A block is free (in the queue) when nobody holds it. A free block that still has a hash can be taken back by a prefix hit until
it is reused, the longest unused first. A block is published under a hash only when all of its tokens are committed (law 6).
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b

import numpy as np

from engine.errors import IntegrityError
from engine.request import Request

__all__ = ["BlockPool", "KVCacheManager"]


class BlockPool:
    """Reference-counted blocks 0..num_blocks-1 with a least-recently-used queue of the free ones."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.ref_counts = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._block_of_hash: dict[bytes, int] = {}
        self._hash_of_block: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out, those with a hash among them."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Free blocks that a prefix hit can still take back."""
        return sum(block in self._hash_of_block for block in self._free)

    def take(self) -> int:
        """Hand out the longest unused free block; its old content is forgotten."""
        block, _ = self._free.popitem(last=False)
        self.unpublish(block)
        self.ref_counts[block] = 1
        return block

    def find(self, block_hash: bytes) -> int | None:
        return self._block_of_hash.get(block_hash)

    def share(self, block: int) -> None:
        """One more holder of a block that `find` gave."""
        if self.ref_counts[block] == 0:
            del self._free[block]
        self.ref_counts[block] += 1

    def release(self, block: int) -> None:
        assert self.ref_counts[block] > 0, f"block {block} is released more often than it was taken"
        self.ref_counts[block] -= 1
        if self.ref_counts[block] == 0:
            self._free[block] = None

    def publish(self, block: int, block_hash: bytes) -> None:
        """Make a held block findable; where another block with the same content is findable already, that one stays so."""
        if block_hash not in self._block_of_hash and block not in self._hash_of_block:
            self._block_of_hash[block_hash] = block
            self._hash_of_block[block] = block_hash

    def unpublish(self, block: int) -> None:
        """The block can no longer be found by its content."""
        old = self._hash_of_block.pop(block, None)
        if old is not None:
            del self._block_of_hash[old]

    def check(self, holders: list[list[int]]) -> None:
        """Raise `IntegrityError` unless free + held = total and every reference has a holder."""
        counts = [0] * self.num_blocks
        for blocks in holders:
            for block in blocks:
                counts[block] += 1
        for block, (seen, counted) in enumerate(zip(counts, self.ref_counts, strict=True)):
            if seen != counted:
                raise IntegrityError(f"block {block} has {counted} references, but {seen} requests hold it")
            if (counted == 0) != (block in self._free):
                raise IntegrityError(
                    f"block {block} has {counted} references and is{'' if block in self._free else ' not'} free"
                )
        for block, block_hash in self._hash_of_block.items():
            if self._block_of_hash.get(block_hash) != block:
                raise IntegrityError(f"the hash of block {block} leads to block {self._block_of_hash.get(block_hash)}")


class KVCacheManager:
    """Gives requests their blocks."""

    def __init__(
        self, num_blocks: int, block_size: int, enable_prefix_caching: bool, *, drop_last_cached_block: bool = False
    ) -> None:
        """drop_last_cached_block: see `ResolvedConfig.drops_last_cached_block`."""
        self.pool = BlockPool(num_blocks)
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.drop_last_cached_block = drop_last_cached_block

    @staticmethod
    def block_hash(parent: bytes, token_ids: list[int]) -> bytes:
        """Content address of a full block: its tokens and, through `parent`, all tokens before it."""
        return blake2b(parent + np.asarray(token_ids, dtype=np.int32).tobytes(), digest_size=16).digest()

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def num_missing(self, request: Request, num_tokens: int) -> int:
        """Blocks that `request` lacks to hold KV entries for its first `num_tokens` positions."""
        return max(0, self.num_blocks_for(num_tokens) - len(request.block_ids))

    def allocate_some(self, request: Request, num_tokens: int) -> tuple[int, ...]:
        """`allocate` as far as the free blocks go."""
        count = min(self.num_missing(request, num_tokens), self.pool.num_free)
        new = tuple(self.pool.take() for _ in range(count))
        request.block_ids.extend(new)
        return new

    def can_allocate(self, request: Request, num_tokens: int) -> bool:
        return self.num_missing(request, num_tokens) <= self.pool.num_free

    def allocate(self, request: Request, num_tokens: int) -> tuple[int, ...]:
        """Extend the request's blocks to its first `num_tokens` positions; returns the new ones. Ask `can_allocate` first."""
        assert self.can_allocate(request, num_tokens)
        return self.allocate_some(request, num_tokens)

    def take_cached_prefix(self, request: Request, token_ids: list[int]) -> int:
        """Give the request the cached blocks of its longest known prefix; returns how many tokens they hold.

        At least one token is left over, since the last one must go through the model to give logits.
        """
        assert not request.block_ids, "a prefix can only be taken by a request without blocks"
        if not self.enable_prefix_caching:
            return 0
        parent = b""
        for start in range(0, (len(token_ids) - 1) // self.block_size * self.block_size, self.block_size):
            parent = self.block_hash(parent, token_ids[start : start + self.block_size])
            block = self.pool.find(parent)
            if block is None:
                break
            self.pool.share(block)
            request.block_ids.append(block)
            request.block_hashes.append(parent)
        if self.drop_last_cached_block and request.block_ids:
            self.pool.release(request.block_ids.pop())
            request.block_hashes.pop()
        return len(request.block_ids) * self.block_size

    def publish_committed(self, request: Request) -> None:
        """Make the blocks findable that the committed length has filled."""
        if not self.enable_prefix_caching:
            return
        hashes = request.block_hashes
        num_full = request.num_committed_tokens // self.block_size
        if len(hashes) == num_full:
            return
        token_ids = request.token_ids
        for index in range(len(hashes), num_full):
            start = index * self.block_size
            block_hash = self.block_hash(hashes[-1] if hashes else b"", token_ids[start : start + self.block_size])
            self.pool.publish(request.block_ids[index], block_hash)
            hashes.append(block_hash)

    def forget(self, request: Request) -> None:
        """Take the request's blocks out of the prefix cache."""
        for block in request.block_ids:
            self.pool.unpublish(block)

    def release(self, request: Request) -> None:
        """Give all blocks back, the last one first, so that the head of a prefix lives longest in the cache."""
        for block in reversed(request.block_ids):
            self.pool.release(block)
        request.block_ids = []
        request.block_hashes = []
