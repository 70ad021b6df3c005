"""The device side: turns a plan into tokens. One ragged batch, one forward, then accept, commit to the table, draft."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from engine.checkpoint import open_checkpoint, resolve_model
from engine.config import ResolvedConfig
from engine.drafters.base import AcceptedStep, DraftContext, Drafter, Target
from engine.drafters.pick import DraftPicker
from engine.model import Batch, Decoder, Hidden
from engine.ragged import arange_each
from engine.sampler import row_logprobs
from engine.step import PlanRow, RowLogprobs, StepPlan, StepResult
from engine.verify import Positions
from kernels.backend import create_kernels
from kernels.interface import Kernels

if TYPE_CHECKING:
    from engine.parts import Parts

__all__ = ["Launch", "Runner", "load_decoder"]

Ints = npt.NDArray[np.int64]


def load_decoder(config: ResolvedConfig, kernels: Kernels) -> Decoder:
    """The target, from its checkpoint."""
    options = config.options
    return Decoder(
        open_checkpoint(resolve_model(options.model)),
        kernels,
        dtype=options.dtype,
        quantization=options.quantization,
        max_model_len=config.max_model_len,
        num_kv_blocks=config.num_kv_blocks,
        block_size=options.block_size,
    )


@dataclass(frozen=True)
class Launch:
    """A step on its way through the model. Ragged arrays are row after row."""

    rows: tuple[PlanRow, ...]
    slots: Ints  # [rows]
    starts: Ints  # [rows], position of the row's first token
    query_lens: Ints  # [rows]
    logit_counts: Ints  # [rows], how many of the row's positions give logits: 0, 1 (prefill) or query_len (decode)
    batch: Batch


class Runner:
    def __init__(self, config: ResolvedConfig, parts: Parts) -> None:
        options = config.options
        self.config = config
        self.parts = parts
        self.block_size = options.block_size
        self.depth = config.num_speculative_tokens
        self.kernels = create_kernels(options.kernel_backend, config.num_threads)
        self.model = parts.model(config, self.kernels)
        self.table = parts.slot_table(options.max_num_seqs, config.max_model_len, self.depth, options.block_size)
        self.sampler = parts.sampler(self.kernels, options.max_num_seqs)
        self._picker = self._create_picker()
        self.verifier = parts.verifier(config.speculative, self.sampler, self._picker)
        self.drafter = self._create_drafter(self._picker)
        self._layer_ids = self.drafter.layer_ids if self.drafter is not None else ()
        self._num_logprobs: list[int | None] = [None] * options.max_num_seqs
        self._block_tables_device = torch.from_numpy(self.table.block_tables)  # shares memory with the table

    def _create_picker(self) -> DraftPicker | None:
        speculative = self.config.speculative
        if speculative is None:
            return None
        num_slots, vocab_size = self.config.options.max_num_seqs, self.config.model.vocab_size
        return self.parts.picker(self.sampler, num_slots, self.depth, vocab_size, speculative.draft_sample_method)

    def _create_drafter(self, picker: DraftPicker | None) -> Drafter | None:
        speculative = self.config.speculative
        if speculative is None or picker is None:
            return None
        drafter = self.parts.drafter(speculative)(self.depth, self.config.model.vocab_size, speculative.options)
        options, padded = self.config.options, not speculative.disable_padded_drafter_batch
        drafter.load(
            Target(
                options.model,
                self.model,
                self.table,
                self.config.num_kv_blocks,
                options.block_size,
                options.dtype,
                padded,
                picker,
            )
        )
        return drafter

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step. Plans come in the order of their ids."""
        for new in plan.new_slots:
            self.table.admit(new)
            self.sampler.admit(new.slot, new.sampling, new.num_prompt_tokens)
            self._num_logprobs[new.slot] = new.sampling.logprobs
            if self.drafter is not None:
                self.drafter.admit(new)
        launch = self._launch(plan)
        hidden = self._forward(launch)
        logits, raw = self._logits(launch, hidden)
        choices, drafts, num_drafted = self._choose(launch, logits)
        num_emitted, nan = self.parts.accept(choices, drafts, num_drafted)
        wanted = launch.logit_counts > 0
        num_emitted, nan = np.where(wanted, num_emitted, 0), nan & wanted
        self._commit(launch, choices, num_emitted)
        self._draft(launch, hidden, num_emitted)
        return StepResult(
            step_id=plan.step_id,
            token_ids=choices.astype(np.int32),
            num_emitted=num_emitted.astype(np.int32),
            num_drafted=num_drafted.astype(np.int32),
            num_computed=launch.query_lens.astype(np.int32),
            nan_logits=nan,
            logprobs=self._logprobs(launch, raw, choices, num_emitted),
        )

    def _launch(self, plan: StepPlan) -> Launch:
        table, rows = self.table, plan.rows
        for row in rows:
            table.append_blocks(row)
        slots = np.array([row.slot for row in rows], dtype=np.int64)
        query_lens = np.array([table.query_len(row) for row in rows], dtype=np.int64)
        decodes = np.array([row.is_decode for row in rows])
        wants = np.array([row.wants_token for row in rows])
        row_of_token = np.repeat(np.arange(len(rows)), query_lens)
        starts = table.num_computed[slots]
        positions = starts[row_of_token] + arange_each(query_lens)
        slot_of_token = slots[row_of_token]
        blocks = table.block_tables[slot_of_token, positions // self.block_size].astype(np.int64)
        batch = Batch(
            token_ids=torch.from_numpy(table.tokens[slot_of_token, positions].astype(np.int64)),
            positions=torch.from_numpy(positions),
            rows=torch.from_numpy(slot_of_token),
            slot_mapping=torch.from_numpy(blocks * self.block_size + positions % self.block_size),
            block_tables=self._block_tables_device,
        )
        return Launch(rows, slots, starts, query_lens, np.where(decodes, query_lens, wants), batch)

    def _forward(self, launch: Launch) -> Hidden:
        """The target's states of the whole batch, those among them that the drafter reads."""
        if not len(launch.batch.token_ids):
            empty = torch.zeros((0, self.config.model.hidden_size))
            return Hidden(empty, (empty,) * len(self._layer_ids))
        return self.model.forward(launch.batch, self._layer_ids)

    def _logits(self, launch: Launch, hidden: Hidden) -> tuple[torch.Tensor, torch.Tensor]:
        """(logits, raw logits), [sum(logit_counts), V] f32, of the last `logit_counts` positions of each row, row after row.

        The second is a copy where log-probabilities are wanted, since the sampler masks the first in place.
        """
        ends = np.cumsum(launch.query_lens)
        first = np.repeat(ends - launch.logit_counts, launch.logit_counts)
        index = first + arange_each(launch.logit_counts)
        if not len(index):
            empty = torch.zeros((0, self.config.model.vocab_size))
            return empty, empty
        logits = self.model.logits(hidden.normed[torch.from_numpy(index)])
        wants_logprobs = any(self._num_logprobs[slot] is not None for slot in launch.slots)
        return logits, logits.clone() if wants_logprobs else logits

    def _choose(self, launch: Launch, logits: torch.Tensor) -> tuple[Ints, Ints, Ints]:
        """(choices [rows, K + 1], drafts [rows, K], num_drafted [rows]): what the target says, and what was proposed."""
        table, counts = self.table, launch.logit_counts
        row_of_logit = np.repeat(np.arange(len(counts)), counts)
        place = arange_each(counts)
        num_tokens = table.num_tokens[launch.slots]
        num_drafted = np.maximum(counts - 1, 0)
        columns = num_tokens[:, None] + np.arange(self.depth + 1)
        drafts = table.tokens[launch.slots[:, None], columns].astype(np.int64)
        at = Positions(
            slots=launch.slots[row_of_logit],
            places=place,
            positions=num_tokens[row_of_logit] + place,
            drafts=np.where(place < num_drafted[row_of_logit], drafts[row_of_logit, place], -1),
        )
        choices = np.full((len(counts), self.depth + 1), -1, dtype=np.int64)
        choices[row_of_logit, place] = self.verifier.choose(logits, at)
        return choices, drafts[:, : self.depth], num_drafted

    def _commit(self, launch: Launch, choices: Ints, num_emitted: Ints) -> None:
        """What the step has settled goes into the table, where the next step finds it."""
        table = self.table
        for index, (row, slot) in enumerate(zip(launch.rows, launch.slots, strict=True)):
            if not row.wants_token:
                table.num_computed[slot] += launch.query_lens[index]
            elif launch.query_lens[index]:
                table.append_tokens(slot, choices[index, : num_emitted[index]])
                table.num_computed[slot] = table.num_tokens[slot] - 1

    def _draft(self, launch: Launch, hidden: Hidden, num_emitted: Ints) -> None:
        """Propose what the next step verifies; the proposals stand behind the known tokens."""
        if self.drafter is None:
            return
        table = self.table
        asked = np.array([row.num_next_drafts for row in launch.rows], dtype=np.int64)
        room = table.token_limit[launch.slots] - table.num_tokens[launch.slots] - 1
        max_drafts = np.where(num_emitted > 0, np.maximum(np.minimum(asked, room), 0), 0)
        ends = np.cumsum(launch.query_lens)
        self.drafter.advance(
            AcceptedStep(
                slots=launch.slots,
                starts=launch.starts,
                offsets=ends - launch.query_lens,
                query_lens=launch.query_lens,
                num_computed=table.num_computed[launch.slots],
                num_tokens=table.num_tokens[launch.slots],
                max_drafts=max_drafts,
                hidden=hidden,
            )
        )
        picked = np.flatnonzero(max_drafts > 0)
        if not len(picked):
            return
        slots = launch.slots[picked]
        context = DraftContext(slots, table.tokens, table.num_tokens[slots], max_drafts[picked])
        drafts, counts = self.drafter.propose(context)
        name = type(self.drafter).__name__
        if (counts > context.max_drafts).any():
            raise ValueError(f"{name} proposed more drafts than were asked for")
        if ((drafts < 0) | (drafts >= self.config.model.vocab_size)).any():
            raise ValueError(f"{name} proposed an id outside the vocabulary")
        for slot, start, row, count in zip(slots, context.num_tokens, drafts, counts, strict=True):
            table.tokens[slot, start : start + count] = row[:count]
            table.num_drafts[slot] = count

    def _logprobs(self, launch: Launch, raw: torch.Tensor, choices: Ints, num_emitted: Ints) -> dict[int, RowLogprobs]:
        starts = np.cumsum(launch.logit_counts) - launch.logit_counts
        found = {}
        for index, slot in enumerate(launch.slots):
            k, emitted = self._num_logprobs[slot], int(num_emitted[index])
            if k is not None and emitted:
                rows = raw[starts[index] : starts[index] + emitted]
                found[index] = row_logprobs(self.kernels, rows, choices[index, :emitted].tolist(), k)
        return found
