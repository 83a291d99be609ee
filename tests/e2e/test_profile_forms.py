"""One network in several forms, which `hwnas profile` and `hwnas profiles` tell apart."""

import json

import numpy as np
import pytest

import hwnas as library
from hwnas.errors import HwnasError
from hwnas.export import onnx_from_description
from hwnas.profiling.driver import grid, profile
from hwnas.profiling.packs import Model, write_pack
from hwnas.profiling.profiles import read_profile
from hwnas.testing.onnx_models import TOY_ARCHS as ARCHS
from hwnas.testing.onnx_models import provide_toy as provide
from hwnas.testing.profiles import NANO, QUICK

pytestmark = pytest.mark.usefixtures("own_lock")

NANO_SPACE = library.space("nano")


def packed_in_form(path, archs, linears):
    made = [onnx_from_description(NANO_SPACE.network(arch), linears=linears) for arch in archs]
    pairs = zip(archs, made, strict=True)
    write_pack(path, [Model(arch=arch.to_json(), onnx=onnx) for arch, onnx in pairs])


def graphs_in(run_json, path):
    records = run_json("profiles", "show", path, "--all")["records"]
    return {record["digest"]: record["graph"] for record in records}


def test_models_in_another_form_are_measured_again(run, run_json, tmp_path):
    archs = NANO_SPACE.sample(3, np.random.default_rng(0))
    packed_in_form(tmp_path / "a.pack", archs, "convolution")
    packed_in_form(tmp_path / "b.pack", archs[:2], "product")
    first = ("profile", "a.pack", "-o", "p.jsonl", *QUICK)
    assert run_json(*first)["measured"] == 3
    child = run("profile", "b.pack", "-o", "p.jsonl", *QUICK)
    assert "p.jsonl: 2 measured, 0 there already" in child.stdout
    assert "2 measurements in p.jsonl are of other models of the same networks" in child.stderr
    child = run("profile", "b.pack", "-o", "p.jsonl", *QUICK)
    assert "p.jsonl: 0 measured, 2 there already" in child.stdout
    assert "other models" not in child.stderr
    assert len(set(graphs_in(run_json, "p.jsonl").values())) == 3
    # Back to the first form: two of them are of the other one by now.
    assert run_json(*first)["measured"] == 2
    run("profile", "b.pack", "-o", "q.jsonl", *QUICK)
    found = run_json("profiles", "diff", "p.jsonl", "q.jsonl")
    assert (found["both"], found["other_models"]) == (2, 2)
    told = run("profiles", "diff", "p.jsonl", "q.jsonl").stdout
    assert "2 of those in both are of models in another form" in told
    child = run("profiles", "merge", "p.jsonl", "q.jsonl", "-o", "m.jsonl")
    assert "2 measurements are of other models" in child.stderr
    older, newer = graphs_in(run_json, "p.jsonl"), graphs_in(run_json, "q.jsonl")
    assert graphs_in(run_json, "m.jsonl") == {**older, **newer}


def test_models_that_are_built_in_another_form_are_measured_again(run_json, measured):
    asked = (*NANO, "-n", "3", "-o", "p.jsonl", *QUICK)
    assert run_json(*asked)["measured"] == 0
    lines = [json.loads(line) for line in measured.read_text().splitlines()]
    for line in lines[1:]:
        if line["arch"] == NANO_SPACE.largest().to_json():
            line["graph"] = "0" * 64
    measured.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run_json(*asked)["measured"] == 1
    assert run_json(*asked)["measured"] == 0


def test_profiles_of_older_versions_go_on(run_json, measured):
    lines = [json.loads(line) for line in measured.read_text().splitlines()]
    for line in lines[1:]:
        del line["graph"]
    measured.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run_json(*NANO, "-n", "3", "-o", "p.jsonl", *QUICK)["measured"] == 0
    assert set(graphs_in(run_json, "p.jsonl").values()) == {None}


def test_a_companion_that_cannot_be_made_is_done_without_and_missed(tmp_path, options):
    path, told = tmp_path / "p.jsonl", []
    profile(grid(ARCHS[:1]), provide=provide, output=path, options=options)

    def other_models(arch, settings):
        if arch["digest"] == ARCHS[0]["digest"]:
            raise HwnasError("it is not in this pack")
        return provide(arch, settings)

    profile(grid(ARCHS[1:4]), provide=other_models, output=path, options=options, note=told.append)
    (missed,) = [line for line in told if "beside" in line]
    assert ARCHS[0]["digest"][:12] in missed
    assert "cannot be made here: it is not in this pack" in missed
    companions = [record.latency.companion for record in read_profile(path).measured()]
    assert companions == [None, None, *[ARCHS[1]["digest"]] * 2]
