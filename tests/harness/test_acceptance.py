"""Acceptance figures, their bounds and the command that prints them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.acceptance import ALL, Acceptance, assert_within, table
from harness.cli.main import main
from harness.errors import AcceptanceLengthError, AcceptanceRateError, FeatureNotExercisedError

DRAFTS = (((3, 3), (3, 0), (2, 1)), ((3, 2),), ())
SPEC = {"method": "ngram_gpu", "num_speculative_tokens": 2, "prompt_lookup_min": 1, "prompt_lookup_max": 2}


def test_figures_follow_the_definitions() -> None:
    found = Acceptance(DRAFTS, 3)
    assert (found.num_requests, found.num_drafts, found.num_drafted, found.num_accepted) == (3, 4, 11, 6)
    assert found.rate == pytest.approx(6 / 11)
    assert found.length == pytest.approx(1 + 6 / 4)
    assert found.per_position == [3 / 4, 2 / 4, 1 / 4]
    assert found.interval is not None
    assert found.interval.low <= found.length <= found.interval.high


def test_without_drafts() -> None:
    found = Acceptance(((), ()), 3)
    assert (found.rate, found.length, found.per_position) == (None, 1.0, [])
    assert "n/a" in table({ALL: found})
    with pytest.raises(FeatureNotExercisedError):
        assert_within(found, {"length": [1, 2]}, case="none")


def test_bounds() -> None:
    found = Acceptance(DRAFTS, 3)
    assert_within(found, {"length": [2.4, 2.6], "rate": [0.5, 0.6]}, case="inside")
    with pytest.raises(AcceptanceLengthError, match=r"length 2.500 is outside of 2.6 to 3") as caught:
        assert_within(found, {"length": [2.6, 3]}, case="below")
    assert caught.value.details["figures"]["drafts"] == 4
    with pytest.raises(AcceptanceRateError):
        assert_within(found, {"rate": [0.0, 0.5]}, case="above")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], toy_model: str) -> None:
    prompts = tmp_path / "prompts.jsonl"
    rows = [{"prompt": f"abab{i}abab", "category": "ab" if i % 2 else "ba"} for i in range(6)]
    prompts.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    target = tmp_path / "out.json"
    call = ["acceptance", "--model", toy_model, "--spec", json.dumps(SPEC), "--dataset", str(prompts), "--json", str(target)]
    assert main([*call, "--limit", "2"]) == 0
    printed = capsys.readouterr().out
    assert "acceptance length = 1 + accepted / drafts" in printed
    result = json.loads(target.read_text(encoding="utf-8"))
    assert set(result["figures"]) == {"ab", "ba", "all"}
    assert len(result["requests"]) == result["figures"]["all"]["requests"] == 4
    drafts = [draft for request in result["requests"] for draft in request["drafts"]]
    assert result["figures"]["all"]["drafts"] == len(drafts)
    assert result["figures"]["all"]["accepted"] == sum(accepted for _, accepted in drafts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--spec", "{"], "--spec is no JSON"),
        (["--spec", "{}"], "needs a method"),
        (["--spec", json.dumps(SPEC), "--dataset", "nowhere.jsonl"], "no such file; write a file or one of embedded, gsm8k"),
        (["--spec", json.dumps(SPEC | {"prompt_lookup_mx": 2})], "Did you mean 'prompt_lookup_max'"),
        (["--spec", json.dumps(SPEC), "--limit", "0"], "there is no prompt"),
    ],
)
def test_bad_calls(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["acceptance", "--model", "zoo:tiny", *arguments]) == 2
    assert message in capsys.readouterr().err
