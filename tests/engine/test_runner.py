"""The device side alone: hand-written plans on a real runner, and its table of slots."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine import EngineConfig
from engine.checkpoint import open_checkpoint
from engine.parts import create_runner
from engine.runner import Runner
from engine.slot_table import SlotTable
from engine.slots import SlotPool
from engine.step import NewSlot, PlanRow, SlotSampling, StepPlan
from harness.scripted import METHOD, PLUGIN, script

BLOCK_SIZE, DEPTH = 4, 3
PROMPT = list(b"Hello there")


def sampling(**changes: Any) -> SlotSampling:
    values: dict[str, Any] = {
        "temperature": 0.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "seed": 0,
        "sample_index": 0,
        "min_tokens": 0,
        "stop_ids": (),
        "logprobs": None,
    }
    return SlotSampling(**values | changes)


def new_slot(prompt: list[int], *, slot: int = 0, generation: int = 1, limit: int = 30, **changes: Any) -> NewSlot:
    return NewSlot(
        slot=slot,
        generation=generation,
        token_ids=np.array(prompt, dtype=np.int32),
        num_prompt_tokens=len(prompt),
        num_cached_tokens=0,
        token_limit=limit,
        sampling=changes.pop("sampling", sampling()),
        extra_args=changes.pop("extra_args", None),
    )


def row(num_tokens: int, *, slot: int = 0, generation: int = 1, **changes: Any) -> PlanRow:
    values: dict[str, Any] = {"is_decode": True, "wants_token": True, "num_next_drafts": DEPTH, "new_block_ids": ()}
    return PlanRow(slot=slot, generation=generation, num_tokens=num_tokens, **values | changes)


def prefill(prompt: list[int], **changes: Any) -> PlanRow:
    blocks = tuple(range(8)) if changes.get("slot", 0) == 0 else tuple(range(8, 16))
    return row(len(prompt), is_decode=False, new_block_ids=blocks, **changes)


@pytest.fixture
def runner(toy_model: str) -> Runner:
    config = EngineConfig(
        model=toy_model,
        max_model_len=32,
        block_size=BLOCK_SIZE,
        num_kv_blocks=16,
        max_num_seqs=2,
        num_threads=1,
        plugins=(PLUGIN,),
        speculative_config={"method": METHOD, "num_speculative_tokens": DEPTH},
    )
    return create_runner(config.resolve(open_checkpoint(toy_model).config))


@pytest.fixture
def truth(runner: Runner) -> list[int]:
    """The greedy continuation, one token at a time without drafts."""
    runner.execute(StepPlan(0, (prefill(PROMPT, num_next_drafts=0),), (new_slot(PROMPT),)))
    for step in range(1, 16):
        runner.execute(StepPlan(step, (row(1, num_next_drafts=0),)))
    return runner.table.tokens[0, len(PROMPT) : len(PROMPT) + 16].tolist()


def test_right_drafts_are_verified_in_one_step(runner: Runner, truth: list[int]) -> None:
    new = new_slot(PROMPT, extra_args=script([truth], [99]))
    first = runner.execute(StepPlan(20, (prefill(PROMPT),), (new,)))
    assert (first.num_emitted[0], first.num_drafted[0], first.num_computed[0]) == (1, 0, len(PROMPT))
    second = runner.execute(StepPlan(21, (row(1 + DEPTH),)))
    assert (second.num_emitted[0], second.num_drafted[0], second.num_computed[0]) == (4, 3, 4)
    assert [first.token_ids[0, 0], *second.token_ids[0]] == truth[:5]


def test_a_plan_for_fewer_tokens_trims_the_drafts(runner: Runner, truth: list[int]) -> None:
    runner.execute(StepPlan(20, (prefill(PROMPT),), (new_slot(PROMPT, extra_args=script([truth], [99])),)))
    result = runner.execute(StepPlan(21, (row(2),)))
    assert (result.num_emitted[0], result.num_drafted[0], result.num_computed[0]) == (2, 1, 2)
    result = runner.execute(StepPlan(22, (row(1 + DEPTH, num_next_drafts=1),)))
    assert (result.num_emitted[0], result.num_drafted[0]) == (4, 3), "the drafts of the step before, all of them"
    result = runner.execute(StepPlan(23, (row(1 + DEPTH),)))
    assert result.num_drafted[0] == 1, "as many as were asked for"


def test_a_row_at_its_limit_computes_nothing(runner: Runner, truth: list[int]) -> None:
    """The step that was planned while an accepted run was under way finds the request complete."""
    limit = len(PROMPT) + 4
    new = new_slot(PROMPT, limit=limit, extra_args=script([truth], [99]))
    runner.execute(StepPlan(20, (prefill(PROMPT),), (new,)))
    result = runner.execute(StepPlan(21, (row(3),)))
    assert result.num_emitted[0] == 3
    before = runner.table.tokens[0].copy()
    result = runner.execute(StepPlan(22, (row(1 + DEPTH),)))
    assert (result.num_emitted[0], result.num_drafted[0], result.num_computed[0]) == (0, 0, 0)
    assert not result.nan_logits[0]
    assert (runner.table.num_tokens[0], runner.table.num_computed[0]) == (limit, limit - 1)
    assert (runner.table.tokens[0] == before).all()


def test_the_last_step_has_room_for_no_more_than_the_limit(runner: Runner, truth: list[int]) -> None:
    new = new_slot(PROMPT, limit=len(PROMPT) + 3, extra_args=script([truth], [99]))
    runner.execute(StepPlan(20, (prefill(PROMPT),), (new,)))
    result = runner.execute(StepPlan(21, (row(1 + DEPTH),)))
    assert (result.num_emitted[0], result.num_drafted[0]) == (2, 1)


def test_drafts_do_not_survive_a_new_admission(runner: Runner, truth: list[int]) -> None:
    """S-04: the slot is taken again right after drafts were made for it."""
    runner.execute(StepPlan(20, (prefill(PROMPT),), (new_slot(PROMPT, extra_args=script([truth], [99])),)))
    assert runner.table.num_drafts[0] == DEPTH
    known = [*PROMPT, truth[0]]
    again = new_slot(known, generation=2)
    result = runner.execute(StepPlan(21, (prefill(known, generation=2, num_next_drafts=0),), (again,)))
    assert (result.num_drafted[0], result.token_ids[0, 0]) == (0, truth[1])
    result = runner.execute(StepPlan(22, (row(1 + DEPTH, generation=2),)))
    assert (result.num_drafted[0], result.num_emitted[0], result.token_ids[0, 0]) == (0, 1, truth[2])


def test_a_step_for_a_stay_that_is_over_is_refused(runner: Runner) -> None:
    runner.execute(StepPlan(20, (prefill(PROMPT, generation=5),), (new_slot(PROMPT, generation=5),)))
    with pytest.raises(AssertionError, match="step for stay 4 of slot 0, which is over"):
        runner.execute(StepPlan(21, (row(1, generation=4),)))


def test_a_chunk_that_wants_no_token_gives_none(runner: Runner, truth: list[int]) -> None:
    new = new_slot(PROMPT)
    chunk = row(5, is_decode=False, wants_token=False, num_next_drafts=0, new_block_ids=tuple(range(8)))
    first = runner.execute(StepPlan(20, (chunk,), (new,)))
    assert (first.num_emitted[0], first.num_computed[0], first.nan_logits[0]) == (0, 5, False)
    rest = row(len(PROMPT) - 5, is_decode=False, num_next_drafts=0)
    second = runner.execute(StepPlan(21, (rest,)))
    assert (second.num_emitted[0], second.token_ids[0, 0]) == (1, truth[0])


def test_rows_keep_their_own_counts_in_any_order(runner: Runner, truth: list[int]) -> None:
    """X-01: slot 1 before slot 0 in the plan, all drafts right in one and none in the other."""
    new = [
        new_slot(PROMPT, slot=0, extra_args=script([truth], [0])),
        new_slot(PROMPT, slot=1, extra_args=script([truth], [99])),
    ]
    runner.execute(StepPlan(20, (prefill(PROMPT), prefill(PROMPT, slot=1)), tuple(new)))
    result = runner.execute(StepPlan(21, (row(1 + DEPTH, slot=1), row(1 + DEPTH, slot=0))))
    assert result.num_emitted.tolist() == [4, 1]
    assert result.token_ids[0].tolist() == truth[1:5]
    assert result.token_ids[1, 0] == truth[1]


def test_a_drafter_that_breaks_its_contract_is_named(runner: Runner) -> None:
    runner.execute(StepPlan(20, (prefill(PROMPT),), (new_slot(PROMPT),)))
    for drafts, counts, message in (
        (259, 1, "outside the vocabulary"),
        (-1, 1, "outside the vocabulary"),
        (0, 4, "more drafts"),
    ):
        answer = (np.full((1, DEPTH), drafts, dtype=np.int32), np.array([counts]))
        runner.drafter.propose = lambda context, answer=answer: answer  # type: ignore[method-assign, union-attr, misc]
        with pytest.raises(ValueError, match=f"ScriptedDrafter proposed .*{message}"):
            runner.execute(StepPlan(21, (row(1),)))


# --- the table and the slots ---------------------------------------------------------------------------------------------


def test_the_table_trims_a_decode_row_to_drafts_plan_and_limit() -> None:
    table = SlotTable(2, 32, DEPTH, BLOCK_SIZE)
    table.admit(new_slot([1, 2, 3], limit=8))
    for num_drafts, planned, num_tokens, expected in ((3, 4, 3, 4), (1, 4, 3, 2), (3, 2, 3, 2), (3, 4, 6, 2), (3, 4, 8, 0)):
        table.num_drafts[0], table.num_tokens[0] = num_drafts, num_tokens
        assert table.query_len(row(planned)) == expected
    assert table.query_len(prefill([1, 2, 3])) == 3


def test_the_table_appends_blocks_and_tokens() -> None:
    table = SlotTable(2, 32, DEPTH, BLOCK_SIZE)
    table.admit(new_slot([1, 2, 3]))
    table.append_blocks(row(3, is_decode=False, new_block_ids=(5, 6)))
    table.append_blocks(row(1, new_block_ids=(2,)))
    assert table.block_tables[0, :3].tolist() == [5, 6, 2]
    table.num_drafts[0] = 2
    table.append_tokens(0, np.array([8, 9]))
    assert table.tokens[0, :5].tolist() == [1, 2, 3, 8, 9]
    assert (table.num_tokens[0], table.num_drafts[0]) == (5, 0)
    table.admit(new_slot([7], generation=2))
    assert (table.num_tokens[0], table.num_blocks[0], table.generation[0]) == (1, 0, 2)


def test_every_stay_in_a_slot_has_its_own_generation() -> None:
    pool = SlotPool(2)
    seen = set()
    for _ in range(3):
        stays = [pool.take(), pool.take()]
        assert {slot for slot, _ in stays} == {0, 1}
        assert pool.num_free == 0
        seen.update(stays)
        for slot, _ in stays:
            pool.release(slot)
    assert len(seen) == 6
    with pytest.raises(AssertionError, match="released twice"):
        pool.release(0)
