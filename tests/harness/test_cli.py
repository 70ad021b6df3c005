"""`lockstep generate` and `lockstep diff`: what they print, write and return."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.cli.arguments import named_values
from harness.cli.main import main

SMALL = ["max_model_len=96", "num_threads=1"]


def test_generate(toy_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out.json"
    arguments = ["generate", "--model", toy_model, "--prompt", "Hello", "--prompt", "Bye", "--options", *SMALL]
    assert main([*arguments, "--sampling", "temperature=0", "max_tokens=5", "--json", str(target)]) == 0
    result = json.loads(target.read_text())
    printed = capsys.readouterr().out
    assert len(result["outputs"]) == 2
    for output in result["outputs"]:
        (completion,) = output["completions"]
        assert len(completion["token_ids"]) == 5
        assert completion["text"] in printed
        assert output["error"] is None
    assert result["outputs"][0]["prompt_token_ids"] == [256, *b"Hello"]
    assert result["config"]["async_scheduling"] is True
    assert result["stats"]["num_generated_tokens"] == 10
    assert "10 tokens; asynchronous scheduling on" in printed


def test_generate_with_a_prompt_that_is_too_long(toy_model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The others are completed all the same; the exit status tells."""
    arguments = ["generate", "--model", toy_model, "--prompt", "x" * 200, "--prompt", "Bye", "--options", *SMALL]
    assert main([*arguments, "--sampling", "max_tokens=5"]) == 2
    printed = capsys.readouterr().out
    assert "--- 0: the prompt has 201 tokens; max_model_len=96" in printed
    assert "--- 1: 5 tokens, length" in printed


def test_prompts_from_files(toy_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, lines = tmp_path / "p.txt", tmp_path / "p.jsonl"
    text.write_text("one\n\ntwo\nthree\n")
    lines.write_text('{"prompt": "one"}\n{"question": "two"}\n')
    target = tmp_path / "out.json"
    for file, extra, expected in ((text, ["--limit", "2"], ["one", "two"]), (lines, [], ["one", "two"])):
        arguments = ["generate", "--model", toy_model, "--prompts", str(file), *extra, "--options", *SMALL]
        assert main([*arguments, "--sampling", "max_tokens=1", "--json", str(target)]) == 0
        prompts = [bytes(o["prompt_token_ids"][1:]).decode() for o in json.loads(target.read_text())["outputs"]]
        assert prompts == expected
    lines.write_text('{"prompt": "one"}\n{"text": "two"}\n')
    assert main(["generate", "--model", toy_model, "--prompts", str(lines), "--options", *SMALL]) == 2
    assert "line 2: expected an object with the field prompt or question" in capsys.readouterr().err


def test_chat(toy_model: str, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    arguments = ["generate", "--model", toy_model, "--prompt", "hi", "--chat", "--options", *SMALL, "--json", str(target)]
    assert main([*arguments, "--sampling", "max_tokens=1"]) == 0
    (output,) = json.loads(target.read_text())["outputs"]
    assert bytes(output["prompt_token_ids"][1:]).decode() == "[user] hi\n[assistant] "


def diff(toy_model: str, tmp_path: Path, a: list[str], b: list[str], *sampling: str) -> tuple[int, dict[str, Any]]:
    target = tmp_path / "diff.json"
    prompts = ["--prompt", "The cat", "--prompt", "1 + 1 =", "--prompt", "x"]
    chosen = ["--sampling", *(sampling or ("temperature=0", "max_tokens=40", "ignore_eos=true")), "--json", str(target)]
    code = main(["diff", "--model", toy_model, "--a", *SMALL, *a, "--b", *SMALL, *b, *prompts, *chosen])
    return code, json.loads(target.read_text())


def test_diff_of_equal_configurations(toy_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    speculative = 'speculative_config={"method": "ngram_gpu", "num_speculative_tokens": 3, "prompt_lookup_max": 2}'
    code, result = diff(toy_model, tmp_path, ["async_scheduling=false"], [speculative, "max_num_seqs=2", "block_size=4"])
    printed = capsys.readouterr().out
    assert (code, result["num_prompts"], result["num_different"], result["differences"]) == (0, 3, 0, [])
    assert "3 of 3 prompts are identical" in printed
    assert "a: asynchronous scheduling off (explicit_off), 0 of" in printed
    assert "b: asynchronous scheduling on (supported)" in printed
    assert result["a"]["num_overlapped_steps"] == 0 < result["b"]["num_overlapped_steps"]


def test_diff_of_different_numerics(toy_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = diff(toy_model, tmp_path, [], ["dtype=bfloat16"])
    printed = capsys.readouterr().out
    assert code == 1
    assert result["num_different"] == len(result["differences"]) > 0
    first = result["differences"][0]
    assert first["exception"] == "TokenMismatchError"
    evidence = first["evidence"]
    assert f"first divergence at new token {evidence['position']}:" in printed
    for side in "ab":
        assert len(evidence["candidates"][side]) == 5
        assert f"  {side} says: " in printed
    best = {side: evidence["candidates"][side][0]["token_id"] for side in "ab"}
    assert best == {"a": evidence["expected"], "b": evidence["actual"]}, "greedy takes each side's best"
    assert f"{3 - result['num_different']} of 3 prompts are identical" in printed


def test_diff_of_different_seeds(toy_model: str, tmp_path: Path) -> None:
    sampling = ("temperature=1", "max_tokens=20", "ignore_eos=true")
    code, result = diff(toy_model, tmp_path, ["seed=1"], ["seed=2"], *sampling)
    assert (code, result["num_different"]) == (1, 3)
    assert diff(toy_model, tmp_path, ["seed=1"], ["seed=1", "max_num_batched_tokens=4"], *sampling)[0] == 0


BAD_CALLS = {
    "unknown-option": (["--options", "max_num_seq=2"], "Did you mean 'max_num_seqs'"),
    "unknown-sampling": (["--sampling", "temprature=1"], "Did you mean 'temperature'"),
    "bad-value": (["--sampling", "top_p=2"], r"top_p must be in \(0, 1\]"),
    "not-a-pair": (["--options", "max_num_seqs"], "'max_num_seqs' is not NAME=VALUE"),
    "no-such-file": (["--prompts", "nowhere.txt"], "nowhere.txt"),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_a_bad_call_is_explained(case: str, toy_model: str, capsys: pytest.CaptureFixture[str]) -> None:
    import re

    extra, message = BAD_CALLS[case]
    assert main(["generate", "--model", toy_model, "--prompt", "x", *extra]) == 2
    error = capsys.readouterr().err
    assert error.startswith("lockstep generate: ")
    assert re.search(message, error)


def test_other_bad_calls(toy_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--model", toy_model]) == 2
    assert "give --prompt TEXT or --prompts FILE" in capsys.readouterr().err
    assert main(["diff", "--model", str(tmp_path / "nothing"), "--prompt", "x"]) == 2
    assert main(["diff", "--model", toy_model, "--prompt", "x" * 200, "--a", *SMALL, "--b", *SMALL]) == 2
    for wrong in (["generate"], ["nonsense"], []):
        with pytest.raises(SystemExit) as caught:
            main(wrong)
        assert caught.value.code == 2


def test_values_are_json_where_they_can_be() -> None:
    pairs = ["a=1", "b=0.5", "c=true", "d=True", "e=None", "f=null", "g=text", 'h={"x": [1]}', "i=", "j=a=b"]
    assert named_values(pairs) == {
        "a": 1,
        "b": 0.5,
        "c": True,
        "d": True,
        "e": None,
        "f": None,
        "g": "text",
        "h": {"x": [1]},
        "i": "",
        "j": "a=b",
    }
