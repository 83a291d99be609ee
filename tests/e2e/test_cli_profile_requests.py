"""What `hwnas profile` and `hwnas pack` say of requests that cannot be met as they are."""

import json

import pytest

import hwnas as library
from hwnas.testing.profiles import NANO, QUICK

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_lock")]

LARGEST = library.space("nano").largest()
SMALLEST = library.space("nano").smallest()


def test_a_pack_of_another_network_than_asked_for(run):
    run("pack", "--space", "nano", "-n", "3", "-o", "nano.pack")
    for asked in (["--space", "nano", "--classes", "7"], ["--space", "alphanet"]):
        child = run("profile", "nano.pack", *asked, "-o", "q.jsonl", *QUICK, code=2)
        assert "nano.pack: holds models of space 'nano'" in child.stderr
    child = run("profile", "nano.pack", "--active", *QUICK, code=2)
    assert "--active with 3 architectures; accepted: from 12" in child.stderr


def test_a_wrong_architecture_is_named_by_its_line(run, tmp_path):
    good, wrong = SMALLEST.to_json(), LARGEST.to_json()
    wrong["genes"]["t4.depth"] = 99
    (tmp_path / "a.jsonl").write_text(json.dumps(good) + "\n" + json.dumps(wrong) + "\n")
    child = run("profile", "--archs", "a.jsonl", "-o", "q.jsonl", *QUICK, code=2)
    assert "a.jsonl, line 2: t4.depth = 99" in child.stderr
    (tmp_path / "b.jsonl").write_text(json.dumps({**good, "options": {"classes": "x"}}))
    assert "b.jsonl: classes = 'x'" in run("pack", "--archs", "b.jsonl", "-o", "x", code=2).stderr


def test_explaining_a_precision_that_is_cast(run_json):
    rows = run_json(*NANO, "--explain", "largest", "--precision", "fp16")["rows"]
    of_runtime = next(row["operators"] for row in rows if row["block"] == "(runtime)")
    assert "Conv" not in of_runtime


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["profile"], "no architectures are named"),
        (["profile", "--classes", "3"], "of which space?"),
        (["profile", "--space", "nasvt"], "did you mean nasvit"),
        (["profile", "--space", "nano", "--threads", "0"], "whole numbers from 1"),
        (["profile", "--space", "nano", "--precision", "fp32,"], "empty name"),
        (["profile", "--space", "nano", "--precision", "bf16"], "onnxruntime has no bf16"),
        (["profile", "--space", "nano", "--backend", "onxruntime"], "did you mean onnxruntime"),
        (["profile", "--run", "."], "not a run folder"),
        (["profile", "--explain", "smallest"], "of which space?"),
        (["profile", "a.pack", "--archs", "b.json"], "both a pack"),
        (["profile", "n.pack", "-n", "3"], "both -n 3 and n.pack"),
        (["profile", "--space", "nano", "--timeout", "nan"], "'nan'; accepted: seconds"),
        (["profile", "--space", "nano", "--timeout", "inf"], "'inf'; accepted: seconds"),
        (["profile", "--space", "nano", "--max-seconds", "-1"], "'-1'; accepted: seconds"),
        (["profile", "--space", "nano", "--max-seconds", "60"], "a longer timeout"),
        ([*NANO, "--explain", "largest", "--backend", "openvino"], "accepted: onnxruntime"),
        ([*NANO, "--explain", "largest", "--precision", "bf16"], "has no precision 'bf16'"),
        ([*NANO, "--explain", "largest", "--pages", "huge"], "accepted: default"),
        ([*NANO, "--explain", "largest", "--threads", "1,2"], "accepted: one of them"),
    ],
)
def test_requests_that_make_no_sense(run, arguments, told):
    child = run(*arguments, code=2)
    assert told in child.stderr
    assert child.stdout == ""
