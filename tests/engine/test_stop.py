"""Where a request ends: the earliest boundary wins, whichever kind it is, and a run of tokens ends where single steps would."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import LLM, SamplingParams
from engine.detokenizer import Detokenizer, NoDetokenizer
from engine.request import RequestStatus
from engine.stop import Finish, StopChecker
from engine.tokenizer import Tokenizer, load_tokenizer
from harness.scripted import METHOD, PLUGIN, script
from harness.toy_model import EOS_ID, toy_model_path
from tests.engine.support import Driver, make_request, true_output

DEFAULTS: dict[str, Any] = {
    "eos_token_ids": (),
    "stop_token_ids": (),
    "stop": (),
    "include_stop_str": False,
    "min_tokens": 0,
    "max_new_tokens": 99,
}


@pytest.fixture(scope="module")
def toy() -> Tokenizer:
    return load_tokenizer(toy_model_path())


def checker(tokenizer: Tokenizer | None = None, **given_options: Any) -> StopChecker:
    detokenizer = Detokenizer(tokenizer.decode, context_ids=[]) if tokenizer else NoDetokenizer()
    return StopChecker(detokenizer, **DEFAULTS | given_options)


def feed(stop_checker: StopChecker, tokens: bytes | list[int]) -> tuple[Finish | None, int]:
    """(finish, tokens taken)"""
    for count, token in enumerate(tokens, start=1):
        if finish := stop_checker.feed(token):
            return finish, count
    return None, len(tokens)


# --- T-03: a stop at index s and a cap at c ------------------------------------------------------------------------------

GRID = [(s, c) for s in range(1, 6) for c in range(1, 6)]


@pytest.mark.parametrize(("at", "cap"), GRID)
@pytest.mark.parametrize("kind", ["eos", "stop-id", "stop-string"])
def test_the_earlier_of_stop_and_length_wins(kind: str, at: int, cap: int, toy: Tokenizer) -> None:
    """Where both fall on one token it is a stop, as vLLM has it."""
    tokens = list(b"abcdefgh")
    tokens[at - 1] = ord("!")
    options: dict[str, Any] = {
        "eos": {"eos_token_ids": (ord("!"),)},
        "stop-id": {"stop_token_ids": (ord("!"),)},
        "stop-string": {"stop": ("!",)},
    }[kind]
    finish, taken = feed(checker(toy, **options, max_new_tokens=cap), tokens)
    assert taken == min(at, cap)
    stop_reason = {"eos": None, "stop-id": ord("!"), "stop-string": "!"}[kind]
    assert finish == (Finish("stop", stop_reason) if at <= cap else Finish("length"))


@pytest.mark.parametrize(("at", "cap"), GRID)
def test_the_grid_in_one_accepted_run(at: int, cap: int) -> None:
    """The same inside of one verify step of six right drafts: emitted tokens, reason and counters are those of single steps."""
    prompt = next([i] for i in range(50) if len(set(true_output(make_request(prompt=[i])))) == 8)
    truth = true_output(make_request(prompt=prompt))
    driver = Driver.make(depth=6)
    request = make_request(prompt=prompt, max_new_tokens=cap, stop_ids=[truth[at - 1]])
    driver.add(request)
    driver.run()
    assert request.status is RequestStatus.FINISHED
    assert request.output_token_ids == truth[: min(at, cap)]
    assert request.finish == (Finish("stop", truth[at - 1]) if at <= cap else Finish("length"))
    assert request.num_prefills + request.num_decode_steps + request.num_accepted_tokens == min(at, cap)


@pytest.mark.parametrize("kind", ["eos", "stop-id", "stop-string"])
def test_the_grid_in_the_whole_engine(kind: str, new_llm: Callable[..., LLM], toy_model: str, tmp_path: Path) -> None:
    """T-01, T-03, M-01 with a drafter that is always right: ids, text, reasons and log-probabilities equal plain decoding."""
    prompt = list(b"stop here: ")
    base: dict[str, Any] = {"temperature": 0.8, "seed": 4, "logprobs": 1}
    unstopped = SamplingParams(**base, max_tokens=12, ignore_eos=True)
    truth = new_llm(async_scheduling=False).generate([prompt], unstopped, use_tqdm=False)[0].outputs[0].token_ids
    positions = [i for i, token in enumerate(truth[:7]) if truth.index(token) == i and 33 <= token < 127]
    assert len(positions) >= 4
    num_accepted = 0
    for at in positions:
        model = with_eos(toy_model, tmp_path / str(at), truth[at]) if kind == "eos" else toy_model
        plain = new_llm(model=model, async_scheduling=False)
        config = {"method": METHOD, "num_speculative_tokens": 5}
        drafting = new_llm(model=model, speculative_config=config, plugins=(PLUGIN,))
        stop: dict[str, Any] = {"eos": {}, "stop-id": {"stop_token_ids": [truth[at]]}, "stop-string": {"stop": chr(truth[at])}}
        caps = [SamplingParams(**base, **stop[kind], max_tokens=cap) for cap in range(1, 9)]
        scripted = [replace(params, extra_args=script([truth], [99])) for params in caps]
        expected = plain.generate([prompt] * 8, caps, use_tqdm=False)
        actual = drafting.generate([prompt] * 8, scripted, use_tqdm=False)
        for cap, left, right in zip(range(1, 9), expected, actual, strict=True):
            a, b = left.outputs[0], right.outputs[0]
            assert a.token_ids == b.token_ids == truth[: min(at + 1, cap)]
            assert a.finish_reason == b.finish_reason == ("stop" if at < cap else "length")
            assert (a.text, a.stop_reason, a.logprobs) == (b.text, b.stop_reason, b.logprobs)
            assert b.stats.num_prefills + b.stats.num_decode_steps + b.stats.num_accepted_tokens == len(b.token_ids)
        num_accepted += drafting.stats.num_accepted_tokens
    assert num_accepted > 0


def with_eos(model: str, target: Path, token_id: int) -> str:
    """A copy of a checkpoint whose end-of-sequence id is `token_id`."""
    shutil.copytree(model, target)
    for name in ("config.json", "generation_config.json"):
        values = json.loads((target / name).read_text())
        (target / name).write_text(json.dumps(values | {"eos_token_id": token_id}))
    return str(target)


# --- what stops, and what it leaves --------------------------------------------------------------------------------------


def test_a_stop_token_gives_no_text(toy: Tokenizer) -> None:
    stop_checker = checker(toy, stop_token_ids=(ord("c"),))
    assert feed(stop_checker, b"abcd") == (Finish("stop", ord("c")), 3)
    assert stop_checker.text == "ab"


def test_a_stop_token_behind_half_a_character(toy: Tokenizer) -> None:
    stop_checker = checker(toy, eos_token_ids=(EOS_ID,))
    assert feed(stop_checker, [97, 0xE2, EOS_ID]) == (Finish("stop"), 3)
    assert stop_checker.text == "a\ufffd"


def test_an_eos_that_is_also_a_stop_id_is_an_eos() -> None:
    assert checker(eos_token_ids=(5,), stop_token_ids=(5,)).feed(5) == Finish("stop", None)


@pytest.mark.parametrize(("include", "text"), [(False, "ab "), (True, "ab END")])
def test_a_stop_string_over_several_tokens(include: bool, text: str, toy: Tokenizer) -> None:
    stop_checker = checker(toy, stop=("END",), include_stop_str=include)
    assert feed(stop_checker, b"ab END more") == (Finish("stop", "END"), 6)
    assert stop_checker.text == text


@pytest.mark.parametrize(
    ("stops", "text", "expected", "left"),
    [
        (("bc", "abcd"), b"xabcd", "bc", "xa"),
        (("abc", "bc"), b"xabcd", "abc", "x"),  # both end at one place: the one that begins first
        (("bc", "abc"), b"xabcd", "abc", "x"),
        (("aab",), b"aaab", "aab", "a"),
        (("aa",), b"aaaa", "aa", ""),
        (("abab", "ba"), b"ababab", "ba", "a"),
    ],
)
def test_overlapping_stop_strings(stops: tuple[str, ...], text: bytes, expected: str, left: str, toy: Tokenizer) -> None:
    stop_checker = checker(toy, stop=stops)
    finish, _ = feed(stop_checker, text)
    assert finish == Finish("stop", expected)
    assert stop_checker.text == left


def test_a_broken_off_beginning_of_a_stop_string_does_not_hide_the_real_one(toy: Tokenizer) -> None:
    stop_checker = checker(toy, stop=("END",))
    assert feed(stop_checker, b"ENE ENEND more") == (Finish("stop", "END"), 9)


def test_a_stop_string_of_several_bytes_for_each_character(toy: Tokenizer) -> None:
    stop_checker = checker(toy, stop=("€!",))
    finish, taken = feed(stop_checker, list("x€!y".encode()))
    assert (finish, taken, stop_checker.text) == (Finish("stop", "€!"), 5, "x")


# --- min_tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("min_tokens", range(5))
@pytest.mark.parametrize("kind", ["eos", "stop-id", "stop-string"])
def test_nothing_stops_before_min_tokens(kind: str, min_tokens: int, toy: Tokenizer) -> None:
    options: dict[str, Any] = {
        "eos": {"eos_token_ids": (ord("a"),)},
        "stop-id": {"stop_token_ids": (ord("a"),)},
        "stop-string": {"stop": ("a",)},
    }[kind]
    finish, taken = feed(checker(toy, **options, min_tokens=min_tokens), b"aaaaaaaa")
    assert finish is not None
    assert taken == min_tokens + 1


def test_the_length_ends_even_below_min_tokens() -> None:
    assert feed(checker(min_tokens=9, max_new_tokens=3), [1, 2, 3, 4]) == (Finish("length"), 3)


def test_a_stop_string_that_began_before_min_tokens_may_end_behind_it(toy: Tokenizer) -> None:
    stop_checker = checker(toy, stop=("abc",), min_tokens=2)
    assert feed(stop_checker, b"abcd") == (Finish("stop", "abc"), 3)


def test_an_old_match_does_not_stop_later(toy: Tokenizer) -> None:
    """The stop string stood in the text before min_tokens were there; only a new one ends the request."""
    stop_checker = checker(toy, stop=("ab",), min_tokens=2)
    assert feed(stop_checker, b"abxxab") == (Finish("stop", "ab"), 6)
    assert stop_checker.text == "abxx"


# --- properties ----------------------------------------------------------------------------------------------------------


def slow_stop(text: str, stops: list[str]) -> tuple[int, str] | None:
    """(where the text is cut, stop string): the stop string that is complete first; of those, the one that begins first."""
    for end in range(1, len(text) + 1):
        complete = [(end - len(stop), stop) for stop in stops if text[:end].endswith(stop)]
        if complete:
            return min(complete)
    return None


@settings(max_examples=200, deadline=None)
@given(
    text=st.text("ab€", max_size=14),
    stops=st.lists(st.text("ab€", min_size=1, max_size=3), min_size=1, max_size=3, unique=True),
    include=st.booleans(),
)
def test_stop_strings_as_a_loop_over_the_whole_text_finds_them(
    toy: Tokenizer, text: str, stops: list[str], include: bool
) -> None:
    stop_checker = checker(toy, stop=tuple(stops), include_stop_str=include)
    finish, taken = feed(stop_checker, list(text.encode()))
    expected = slow_stop(text, stops)
    if expected is None:
        assert finish is None
        return
    at, stop = expected
    assert finish == Finish("stop", stop)
    assert stop_checker.text == (text[: at + len(stop)] if include else text[:at])
    assert taken == len(text[: at + len(stop)].encode())
