"""The oracles: what must hold between two runs, and within one. Each raises its own exception and returns what it counted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise, zip_longest

from engine import LLM, CompletionOutput
from harness.divergence import Divergence, explain, find_divergence, top_candidates
from harness.errors import (
    AcceptanceRateError,
    AsyncSchedulingNotEnabledError,
    ConservationError,
    FeatureNotExercisedError,
    FinishReasonMismatchError,
    LogprobMismatchError,
    TextMismatchError,
    TokenMismatchError,
    WorkBoundError,
)
from harness.workload import Run, WorkItem

__all__ = [
    "assert_acceptance_exactly",
    "assert_acceptance_follows",
    "assert_async_was_on",
    "assert_conservation",
    "assert_exercised",
    "assert_no_wasted_work",
    "assert_prefix_hits",
    "assert_prefixes_of",
    "assert_same_drafts",
    "assert_same_outputs",
    "assert_work_bounds",
]


def assert_same_outputs(expected: Run, actual: Run, *, case: str, engines: tuple[LLM | None, LLM | None] = (None, None)) -> int:
    """Ids, log-probabilities, finish and stop reasons, and text are equal: no tolerance anywhere.

    `engines` (of the expected and of the actual run) are asked for their candidates at a divergence. Returns how many requests
    were compared; none is a `FeatureNotExercisedError`.
    """
    if not expected.outputs:
        raise FeatureNotExercisedError(f"{case}: {expected.label} has no requests to compare", case=case)
    _assert_none_lost(expected.outputs, actual, case)
    for request_id, a in expected.outputs.items():
        b = actual.outputs[request_id]
        if len(a.outputs) != len(b.outputs) or not a.outputs:
            raise TokenMismatchError(
                f"{case}: request {request_id} has {len(a.outputs)} completions in {expected.label}, {len(b.outputs)} in "
                f"{actual.label}",
                case=case,
                request=request_id,
            )
        for left, right in zip(a.outputs, b.outputs, strict=True):
            name = request_id if len(a.outputs) == 1 else f"{request_id}#{left.index}"
            where = f"{case}: request {name}, {actual.label} against {expected.label}"
            found = find_divergence(left.token_ids, right.token_ids)
            if found is not None:
                _raise_token_mismatch(where, case, name, a.prompt_token_ids, left, found, (expected, actual), engines)
            _assert_same_ending(where, case, name, left, right)
    return len(expected.outputs)


def _assert_none_lost(request_ids: Iterable[str], actual: Run, case: str) -> None:
    different = set(request_ids) ^ set(actual.outputs)
    if different:
        raise TokenMismatchError(
            f"{case}: {actual.label} lost or invented the requests {sorted(different)}",
            case=case,
            expected=sorted(request_ids),
            actual=sorted(actual.outputs),
        )


def _raise_token_mismatch(
    where: str,
    case: str,
    request: str,
    prompt: Sequence[int],
    completion: CompletionOutput,
    found: Divergence,
    runs: tuple[Run, Run],
    engines: tuple[LLM | None, LLM | None],
) -> None:
    prefix = [*prompt, *completion.token_ids[: found.position]]
    sides = {run.label: top_candidates(llm, prefix) if llm else [] for run, llm in zip(runs, engines, strict=True)}
    text, evidence = explain(engines[0] or engines[1], prompt, completion.token_ids, found, sides)
    raise TokenMismatchError(
        f"{where}\n{text}",
        case=case,
        request=request,
        position=found.position,
        expected=found.expected,
        actual=found.actual,
        prompt_token_ids=list(prompt),
        **evidence,
    )


def _assert_same_ending(where: str, case: str, request: str, left: CompletionOutput, right: CompletionOutput) -> None:
    if left.logprobs != right.logprobs:
        pairs = enumerate(zip_longest(left.logprobs or [], right.logprobs or []))
        position, values = next((i, pair) for i, pair in pairs if pair[0] != pair[1])
        raise LogprobMismatchError(
            f"{where}: the ids are equal, the log-probabilities differ from new token {position} on",
            case=case,
            request=request,
            position=position,
            expected=repr(values[0]),
            actual=repr(values[1]),
        )
    ends = [(c.finish_reason, c.stop_reason) for c in (left, right)]
    if ends[0] != ends[1]:
        raise FinishReasonMismatchError(
            f"{where}: the ids are equal, but one ended with {ends[0]}, the other with {ends[1]}",
            case=case,
            request=request,
            expected=list(ends[0]),
            actual=list(ends[1]),
        )
    if left.text != right.text:
        raise TextMismatchError(
            f"{where}: the ids are equal, the text is not:\n  expected {left.text!r}\n  actual   {right.text!r}",
            case=case,
            request=request,
            expected=left.text,
            actual=right.text,
        )


def assert_prefixes_of(reference: Run, actual: Run, items: Sequence[WorkItem], *, case: str) -> int:
    """What was aborted holds the beginning of its reference, everything else all of it. Returns how many were compared."""
    _assert_none_lost([item.request_id for item in items], actual, case)
    meant = {item.request_id for item in items if item.abort_after_tokens is not None}
    # One that reached its end before the abort came is compared whole.
    aborted = {i for i in meant if any(c.finish_reason == "abort" for c in actual.outputs[i].outputs)}
    for request_id in aborted:
        for left, right in zip(reference.outputs[request_id].outputs, actual.outputs[request_id].outputs, strict=True):
            found = find_divergence(left.token_ids[: len(right.token_ids)], right.token_ids)
            if found is not None:
                raise TokenMismatchError(
                    f"{case}: aborted request {request_id} is not the beginning of its reference at new token {found.position}",
                    case=case,
                    request=request_id,
                    position=found.position,
                    expected=found.expected,
                    actual=found.actual,
                )
    if len(aborted) == len(actual.outputs):
        return len(aborted)
    kept = {i: output for i, output in reference.outputs.items() if i not in aborted}
    others = {i: output for i, output in actual.outputs.items() if i not in aborted}
    compared = assert_same_outputs(
        Run(reference.label, kept, reference.stats), Run(actual.label, others, actual.stats), case=case
    )
    return compared + len(aborted)


def assert_async_was_on(llm: LLM, run: Run, *, case: str) -> None:
    """Resolved on, and at least one step was submitted while another was in flight."""
    if not llm.config.async_scheduling or run.stats.num_overlapped_steps == 0:
        raise AsyncSchedulingNotEnabledError(
            f"{case}: asynchronous scheduling is {'on' if llm.config.async_scheduling else 'off'} "
            f"(rule {llm.config.async_decision.rule!r}), {run.stats.num_overlapped_steps} steps overlapped",
            case=case,
            rule=llm.config.async_decision.rule,
            num_overlapped_steps=run.stats.num_overlapped_steps,
        )


def assert_exercised(run: Run, *counters: str, case: str) -> None:
    """Every named counter of the run (a field of `EngineStats`) is above zero: what the case claims really happened."""
    for counter in counters:
        if not getattr(run.stats, counter) > 0:
            raise FeatureNotExercisedError(f"{case}: {run.label} had {counter} = 0", case=case, counter=counter)


def assert_acceptance_exactly(run: Run, rate: int, *, case: str) -> int:
    """Every draft of every request was accepted (rate 1), or none at all (rate 0).

    A stop inside an accepted run leaves tokens behind it that were right and do not count, so rate 1 does not look at the last
    draft of a request that a stop ended. Returns how many drafted tokens were judged; none is a `FeatureNotExercisedError`.
    """
    judged = 0
    for request_id, output in run.outputs.items():
        for completion in output.outputs:
            drafts = completion.stats.drafts
            if rate == 1 and completion.finish_reason != "length":
                drafts = drafts[:-1]
            drafted, accepted = (sum(counts) for counts in zip(*drafts, strict=True)) if drafts else (0, 0)
            judged += drafted
            if accepted != rate * drafted:
                raise AcceptanceRateError(
                    f"{case}: request {request_id} of {run.label} accepted {accepted} of {drafted} drafted tokens, "
                    f"expected {rate * drafted}",
                    case=case,
                    request=request_id,
                    expected=rate * drafted,
                    actual=accepted,
                )
    if not judged:
        raise FeatureNotExercisedError(f"{case}: {run.label} drafted nothing that could be judged", case=case)
    return judged


def assert_acceptance_follows(run: Run, accept: Sequence[int], *, case: str) -> int:
    """Round after round, as many drafts were accepted as the script `accept` says are right.

    Only for an engine where no row is ever short of tokens or blocks, so that every proposal is verified; the last draft of a
    request that a stop ended may have been cut. Returns how many drafts were judged.
    """
    judged = 0
    for request_id, output in run.outputs.items():
        for completion in output.outputs:
            drafts = completion.stats.drafts[: None if completion.finish_reason == "length" else -1]
            for place, (drafted, accepted) in enumerate(drafts):
                right = min(drafted, accept[place % len(accept)])
                if accepted != right:
                    raise AcceptanceRateError(
                        f"{case}: request {request_id} of {run.label}: draft {place} had {right} right tokens of {drafted}, "
                        f"and {accepted} were accepted",
                        case=case,
                        request=request_id,
                        expected=right,
                        actual=accepted,
                    )
            judged += len(drafts)
    return judged


def assert_same_drafts(expected: Run, actual: Run, *, case: str) -> int:
    """Every request had the same drafts with the same outcome in both runs. Returns how many requests were compared."""
    _assert_none_lost(expected.outputs, actual, case)
    for request_id, output in expected.outputs.items():
        for left, right in zip(output.outputs, actual.outputs[request_id].outputs, strict=True):
            pairs = enumerate(zip_longest(left.stats.drafts, right.stats.drafts))
            for place, (before, after) in pairs:
                if before != after:
                    raise AcceptanceRateError(
                        f"{case}: request {request_id}: draft {place} was (drafted, accepted) = {before} in {expected.label}, "
                        f"{after} in {actual.label}",
                        case=case,
                        request=request_id,
                        expected=before and list(before),
                        actual=after and list(after),
                    )
    return len(expected.outputs)


def assert_conservation(run: Run, *, case: str) -> None:
    """Emitted = prefill tokens + sum over steps (1 + accepted), for the run and for each completion; counters within bounds."""
    stats = run.stats

    def same(what: str, expected: int, actual: int, request: str | None = None) -> None:
        if expected != actual:
            message = (
                f"{case}: {run.label}{f', request {request}' if request else ''}: {what}: expected {expected}, got {actual}"
            )
            raise ConservationError(message, case=case, request=request, expected=expected, actual=actual)

    completions = [(f"{i}#{c.index}", c) for i, output in run.outputs.items() for c in output.outputs]
    for name, c in completions:
        own = c.stats.num_prefills + c.stats.num_decode_steps + c.stats.num_accepted_tokens
        same("emitted tokens from prefills, steps and accepted drafts", len(c.token_ids), own, name)
        if c.logprobs is not None:
            same("log-probabilities for the emitted tokens", len(c.token_ids), len(c.logprobs), name)
    total = sum(len(c.token_ids) for _, c in completions)
    same("emitted tokens in the engine's counter", total, stats.num_generated_tokens)
    own = stats.num_prefill_tokens_emitted + stats.num_decode_steps + stats.num_accepted_tokens
    same("emitted tokens from prefills, steps and accepted drafts", total, own)
    same("accepted tokens summed over positions", stats.num_accepted_tokens, sum(stats.num_accepted_tokens_per_pos))
    for name, counter in (("drafts", "num_drafts"), ("drafted", "num_drafted_tokens"), ("accepted", "num_accepted_tokens")):
        by_request = sum(getattr(c.stats, counter) for _, c in completions)
        same(f"{name} summed over requests", getattr(stats, counter), by_request)
    per_pos = stats.num_accepted_tokens_per_pos
    bounds = [stats.num_drafts, *per_pos]
    if any(later > earlier for earlier, later in pairwise(bounds)):
        raise ConservationError(f"{case}: {run.label}: accepted per position rises: {bounds}", case=case, actual=bounds)
    depth = stats.num_speculative_tokens
    if not 0 <= stats.num_accepted_tokens <= stats.num_drafted_tokens <= depth * stats.num_drafts:
        raise ConservationError(
            f"{case}: {run.label}: not 0 <= accepted {stats.num_accepted_tokens} <= drafted {stats.num_drafted_tokens} "
            f"<= {depth} x {stats.num_drafts} drafts",
            case=case,
        )


def assert_prefix_hits(
    reference: Run, run: Run, items: Sequence[WorkItem], *, block_size: int, num_blocks: int, case: str
) -> int:
    """The prefix cache found exactly what it must: less is work done twice, more is somebody else's entries.

    For requests that came in turn (`in_turn`), to an engine with prefix caching that was new. What was to be found follows from
    `reference` alone: whole blocks of what went through the model before, the last token of a prompt excepted. Returns how many
    tokens these are. Nothing is asserted where the pool is so small that blocks were reused, or where NaN took some out.
    """
    known: set[tuple[int, ...]] = set()
    expected = blocks = 0
    for item in items:
        prompt = item.prompt_token_ids
        for end in range(block_size, len(prompt), block_size):
            if prompt[:end] not in known:
                break
            expected += block_size
        completion = reference.outputs[item.request_id].outputs[0]
        if completion.finish_reason == "error":
            return 0
        through = (*prompt, *completion.token_ids)[:-1]
        known.update(through[:end] for end in range(block_size, len(through) + 1, block_size))
        blocks += -(-(len(prompt) + (item.params.max_tokens or 0)) // block_size)
    found = run.stats.num_prefix_hits
    if blocks <= num_blocks and found != expected:
        raise WorkBoundError(
            f"{case}: {run.label}: the prefix cache found {found} tokens, {expected} were there to be found",
            case=case,
            expected=expected,
            actual=found,
        )
    return expected


def assert_work_bounds(sync: Run, asynchronous: Run, *, case: str) -> None:
    """Asynchronous scheduling costs nothing that the results do not justify.

    Each alone: `assert_no_wasted_work`. Preemptions: at most one more for each request than the synchronous run had.
    """
    assert_no_wasted_work(sync, asynchronous=False, case=case)
    assert_no_wasted_work(asynchronous, asynchronous=True, case=case)
    allowed = sync.stats.num_preemptions + len(_completions(asynchronous))
    _at_most("preemptions", allowed, asynchronous.stats.num_preemptions, asynchronous, case)


def assert_no_wasted_work(run: Run, *, asynchronous: bool, case: str) -> None:
    """The positions that went through the model, cache hits added, are exactly those of the tokens, the rejected drafts, the
    dropped rows, and what preempted requests gave up.

    A row is dropped only by asynchronous scheduling, for a request that a stop or an abort ended, at most one for each: a
    length can be foreseen. It can not where drafts are accepted, so there a row may turn out empty, again at most one for each.
    """
    _assert_positions_justified(run, case)
    by_surprise = sum(c.finish_reason != "length" for c in _completions(run)) if asynchronous else 0
    _at_most("dropped rows", by_surprise, run.stats.num_dropped_rows, run, case)
    by_drafts = len(_completions(run)) if asynchronous and run.stats.num_drafts else 0
    _at_most("empty rows", by_drafts, run.stats.num_empty_rows, run, case)


def _completions(run: Run) -> list[CompletionOutput]:
    return [c for output in run.outputs.values() for c in output.outputs]


def _assert_positions_justified(run: Run, case: str) -> None:
    stats = run.stats
    if any(c.finish_reason == "abort" for c in _completions(run)):
        return  # how far an aborted prompt got is nobody's promise
    # The last token never goes through the model, but where it gives NaN it has.
    needed = sum(
        len(output.prompt_token_ids) + len(c.token_ids) - (c.finish_reason != "error")
        for output in run.outputs.values()
        for c in output.outputs
    )
    rejected = stats.num_drafted_tokens - stats.num_accepted_tokens
    justified = needed + rejected + stats.num_dropped_positions + stats.num_preempted_positions
    spent = stats.num_computed_positions + stats.num_prefix_hits
    # A step that gave tokens before it met NaN counts its last draft as its own token, which leaves one for the rejected.
    allowance = sum(c.finish_reason == "error" and c.stats.num_decode_steps > 0 for c in _completions(run))
    if not justified - allowance <= spent <= justified:
        raise WorkBoundError(
            f"{case}: {run.label}: {spent} positions went through the model or came from the cache, {justified} are justified",
            case=case,
            expected=justified,
            actual=spent,
        )


def _at_most(what: str, allowed: int, spent: int, run: Run, case: str) -> None:
    if spent > allowed:
        raise WorkBoundError(
            f"{case}: {run.label}: {what}: {spent}, at most {allowed} are justified", case=case, expected=allowed, actual=spent
        )
