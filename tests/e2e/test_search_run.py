"""`hwnas search`: budgets, devices and settings, impossible ones, resuming, mistakes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hwnas
from hwnas.cli.main import main
from hwnas.pipeline.fronts import latest_front
from hwnas.pipeline.rundir import Run, open_run
from hwnas.pipeline.searching import Request, prepare, search, search_run
from hwnas.pipeline.selecting import select
from hwnas.profiling.records import Settings
from hwnas.report import report
from hwnas.search.api import ENGINES
from hwnas.search.budgets import parse_budgets
from hwnas.search.evolution import Nsga2
from hwnas.testing.runs import imported_run
from hwnas.testing.searchable_runs import HERE, searchable_run

PI = (Settings(), Settings(threads=2), Settings(precision="int8_dynamic"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("search") / "run"
    return searchable_run(folder, {HERE: (Settings(),), "pi5": PI})


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("search") / "run"
    return searchable_run(folder, {"pi5": (Settings(threads=4),)})


@pytest.fixture(autouse=True)
def small_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search a fifth as long as usual."""
    monkeypatch.setitem(ENGINES, "nsga2", lambda: Nsga2(population=128, generations=40))


def found(capsys, run: Run, *arguments: object) -> dict:
    command = ["search", "--run", run.folder, "--verify", 0, "--json", "--quiet", *arguments]
    code = main(list(map(str, command)))
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out)


def refused(capsys, code: int, *arguments: object) -> tuple[str, str]:
    assert main(["search", *map(str, arguments), "--quiet"]) == code
    error, hint = [*capsys.readouterr().err.splitlines(), ""][:2]
    assert error.startswith("error: ")
    return error, hint


def upper(choice: dict, name: str = "latency") -> float:
    return choice["predicted"][name]["high"]


def test_each_budget_has_an_answer(made: Run, capsys) -> None:
    result = found(capsys, made, "--latency", "1ms,60%,1ms..1.2ms", "--top", 3)
    assert [answer["budget"] for answer in result["answers"]] == [
        "latency 1ms", "latency 60%", "latency 1ms..1.2ms",
    ]  # fmt: skip
    largest = result["ranges"]["latency"]["high"]
    for answer, most in zip(result["answers"], (1.0, 0.6 * largest, 1.2), strict=True):
        assert 0.9 * most < upper(answer["recommended"]) <= 1.001 * most
        accuracies = [c["predicted"]["accuracy"]["mean"] for c in answer["listed"]]
        assert len(accuracies) == 3
        assert accuracies == sorted(accuracies, reverse=True)
        assert answer["recommended"]["choice"] == answer["listed"][0]["choice"]
        assert "probability 0.95" in answer["reason"]
    assert result["answers"][2]["listed"][-1]["predicted"]["latency"]["low"] >= 1.0
    front = latest_front(made)
    limits = [answer.limits["latency"] for answer in front.answers]
    assert limits == pytest.approx([1.0, 0.6 * largest, 1.2], rel=1e-3)
    assert len(front.choices) == result["choices"] > 60
    assert front.provenance["predictors"]["accuracy"]["arrays"]
    assert front.provenance["evaluations"] > 20_000
    assert set(front.choices[0].costs) == {"macs", "params", "size"}
    assert front.choices[0].settings == {
        "backend": "onnxruntime", "threads": 1, "batch": 1, "precision": "fp32",
    }  # fmt: skip


def test_the_text_names_what_is_recommended_and_the_knee(made: Run, capsys) -> None:
    command = ["search", "--run", made.folder, "--latency", "1ms", "--verify", 0]
    assert main(list(map(str, command))) == 0
    captured = capsys.readouterr()
    assert "within reach: accuracy" in captured.err
    assert "hypervolume" in captured.err
    front = latest_front(made)
    answer = front.answers[0]
    digests = [front.choices[index].digest[:12] for index in (answer.recommended, answer.knee)]
    assert f"recommended (*): {digests[0]}: the highest predicted accuracy" in captured.out
    assert f"knee (k): {digests[1]}" in captured.out
    assert re.search(rf"^\* +1 +{digests[0]} ", captured.out, re.MULTILINE)


def test_equal_seeds_give_equal_fronts(made: Run) -> None:
    budgets = parse_budgets({"latency": ("1ms",)})
    first, again = (search_run(made, Request(budgets=budgets, seed=3)).front for _ in range(2))
    other = search_run(made, Request(budgets=budgets, seed=4)).front
    assert (first.choices, first.answers) == (again.choices, again.answers)
    assert first.provenance == again.provenance
    assert first.choices != other.choices


def test_without_a_budget_the_knee_is_recommended(made: Run, capsys) -> None:
    (answer,) = found(capsys, made)["answers"]
    assert answer["budget"] == ""
    assert answer["recommended"] == answer["knee"]
    assert answer["feasible"] > 60
    assert len(answer["listed"]) == 5


def test_of_several_budgets_the_possible_ones_are_answered(made: Run, capsys) -> None:
    command = ["search", "--run", made.folder, "--latency", "5ms,0.1ms,1ms", "--verify", 0]
    assert main(list(map(str, command))) == 3
    captured = capsys.readouterr()
    error, hint = [line for line in captured.err.splitlines() if line][-2:]
    assert error.startswith("error: latency 100us: no architecture of nano has latency at most 100")
    assert hint.startswith("hint: ask for latency at most ")
    answers = latest_front(made).answers
    assert [answer.recommended is None for answer in answers] == [False, True, False]
    assert (answers[1].feasible, answers[1].listed, answers[1].knee) == (0, (), None)
    assert answers[1].limits == {"latency": 0.1}
    assert captured.out.count("recommended (*): ") == 2
    assert f"latency 100us: nothing meets it\n\nrecommended: none; {answers[1].reason}\n" in (
        captured.out
    )
    page = report(made.folder).read_text()
    assert "nothing is recommended: no architecture of nano has latency at most 100" in page


def test_where_no_budget_is_possible_the_front_stays(made: Run, capsys) -> None:
    found(capsys, made, "--latency", "1ms")
    before = latest_front(made)
    error, _ = refused(capsys, 3, "--run", made.folder, "--latency", "0.1ms,0.2ms")
    assert "latency at most 100us" in error
    assert "latency at most 200us" in error
    assert latest_front(made) == before


def test_an_impossible_budget_names_one_that_is_possible(made: Run, capsys) -> None:
    error, hint = refused(capsys, 3, "--run", made.folder, "--latency", "0.1ms")
    assert "latency at most 100us with probability 0.95; the nearest that can be met is" in error
    nearest = hint.split("at most ")[1].split(",")[0]
    (answer,) = found(capsys, made, "--latency", nearest)["answers"]
    assert answer["recommended"]
    error, _ = refused(capsys, 3, "--run", made.folder, "--latency", "1ms", "--throughput", "2k/s")
    assert "throughput at least 2000/s" in error


def test_budgets_that_exclude_each_other_end_in_the_same_way(made: Run, capsys) -> None:
    arguments = ("--run", made.folder, "--latency", "0.8ms", "--macs", "3M..4M")
    error, _ = refused(capsys, 3, *arguments)
    assert "that meets all constraints" in error
    assert "(asked: 800us)" in error


def test_costs_throughput_and_size_can_be_bounded(made: Run, capsys) -> None:
    budgets = ("--macs", "2M", "--params", "300k", "--size", "1MB", "--throughput", "900/s")
    (answer,) = found(capsys, made, *budgets)["answers"]
    best = answer["recommended"]
    assert answer["budget"] == "throughput 900/s, macs 2M, params 300k, size 1MB"
    assert best["costs"]["macs"] <= 2e6
    assert best["costs"]["params"] <= 3e5
    assert best["costs"]["size"] <= 1e6
    assert best["predicted"]["throughput"]["low"] >= 900
    mean = best["predicted"]["throughput"]["mean"]
    assert mean == pytest.approx(1000 / best["predicted"]["latency"]["mean"])


def test_several_devices_are_searched_for_at_once(made: Run, capsys) -> None:
    (answer,) = found(capsys, made, "--latency", "pi5=8ms", "--latency", "here=1.1ms")["answers"]
    best = answer["recommended"]
    assert answer["budget"] == "latency:pi5 8ms, latency:here 1.1ms"
    assert upper(best, "latency:pi5") <= 8.0
    assert upper(best, "latency:here") <= 1.1
    assert set(best["settings"]) == {"pi5", "here"}


def test_settings_are_searched_with_the_network(made: Run, capsys) -> None:
    arguments = ("--device", "pi5", "--latency", "6ms")
    plain = found(capsys, made, *arguments)["answers"][0]["recommended"]
    free = found(capsys, made, *arguments, "--settings", "any")["answers"][0]["recommended"]
    asked = found(capsys, made, *arguments, "--settings", "threads=1,precision=int8_dynamic")
    accuracy = [c["predicted"]["accuracy"]["mean"] for c in (plain, free)]
    assert plain["settings"]["threads"] == 1
    assert free["settings"]["threads"] == 2  # the fastest of what was measured
    assert accuracy[1] > accuracy[0] + 0.01
    assert asked["answers"][0]["recommended"]["settings"]["precision"] == "int8_dynamic"
    eight_bits = asked["answers"][0]["recommended"]["costs"]
    assert eight_bits["size"] < 2.5 * eight_bits["params"]
    size = ("--latency", "6ms", "--size", "500kB", "--settings", "any")
    small = found(capsys, made, "--device", "pi5", *size)["answers"][0]["recommended"]
    assert small["settings"]["precision"] == "int8_dynamic"


def test_other_objectives_and_engines(made: Run, capsys) -> None:
    result = found(capsys, made, "--minimise", "params", "--engine", "paper", "--latency", "1ms")
    front = latest_front(made)
    assert front.provenance["objectives"] == ["-accuracy", "params"]
    assert front.provenance["engine"] == "paper"
    assert "cost=1" in front.provenance["engine_settings"]  # bins of costs, not of accuracies
    assert upper(result["answers"][0]["recommended"]) <= 1.0


def test_throughput_is_traded_as_what_there_can_be_more_of(made: Run, capsys) -> None:
    arguments = ("--minimise", "throughput", "--throughput", "700/s", "--top", 50)
    (answer,) = found(capsys, made, *arguments)["answers"]
    assert latest_front(made).provenance["objectives"] == ["-accuracy", "-throughput"]
    means = [
        [choice["predicted"][name]["mean"] for name in ("accuracy", "throughput")]
        for choice in answer["listed"]
    ]
    assert len(means) > 5
    assert means == sorted(means, reverse=True)
    assert [throughput for _, throughput in means] == sorted(t for _, t in means)


def test_the_device_is_this_one_or_the_only_one(made: Run, elsewhere: Run, capsys) -> None:
    assert list(found(capsys, made)["provenance"]["devices"]) == [HERE]
    result = found(capsys, elsewhere)
    assert list(result["provenance"]["devices"]) == ["pi5"]
    assert result["provenance"]["devices"]["pi5"][0]["threads"] == 4
    promised = select(elsewhere).promised
    assert promised is not None
    assert promised["devices"] == {"pi5": "fingerprint of pi5"}


def test_mistakes(made: Run, elsewhere: Run, tmp_path: Path, capsys) -> None:
    two = searchable_run(tmp_path / "two", {"a": (Settings(),), "b": PI[1:]})
    for run, arguments, message, hint in (
        (made, ["--device", "pi6"], "unknown device 'pi6'; did you mean pi5?", "hwnas profile"),
        (made, ["--latency", "pi7=5ms"], "unknown device 'pi7'", "hwnas profile"),
        (made, ["--settings", "threads=8"], "was not measured with threads=8", "hwnas profile"),
        (made, ["--settings", "speed=8"], "is no setting; accepted: any", "--settings"),
        (made, ["--engine", "nsga"], "unknown engine 'nsga'", ""),
        (made, ["--minimise", "latenzy"], "unknown quantity in --minimise 'latenzy'", ""),
        (made, ["--minimise", "accuracy"], "is maximised", ""),
        (
            made,
            ["--confidence", "100%"],
            "--confidence: '100%'; accepted: 50% to below 100%",
            "95%",
        ),
        (made, ["--confidence", "95"], "--confidence: '95'; accepted: 50% to below 100%", "95%"),
        (
            made,
            ["--latency", "5"],
            "--latency: '5' has no unit; accepted: ms, us",
            "--latency 25ms",
        ),
        (made, ["--latency", "9ms,25xs"], "--latency: '25xs' has the unit 'xs'", "--latency 25ms"),
        (made, ["--size", "3foo"], "accepted: B, kB, KB, MB, GB, KiB", "--size 40MB"),
        (made, ["--size", "40mb"], "which is no unit of a size; did you mean 40MB?", "--size 40MB"),
        (
            made,
            ["--throughput", "fast"],
            "--throughput: 'fast' is not a rate; accepted: a number with one of /s, k/s, M/s",
            "--throughput 200/s",
        ),
        (made, ["--memory", "9ms"], "--memory: '9ms' has the unit 'ms'", "--memory 40MB"),
        (made, ["--macs", "-5M"], "--macs: '-5M' is not a count", "--macs 200M"),
        (elsewhere, ["--verify", "2", "--latency", "9ms"], "is none that was searched for", ""),
        (two, [], "knows 2 devices, none of them this machine: a, b", "--device a"),
        (two, ["--device", "b"], "was measured with several settings", "--settings any"),
    ):
        error, told = refused(capsys, 2, "--run", run.folder, *arguments)
        assert message in error
        assert hint in told


def test_what_nobody_predicts_is_said_with_what_to_do(made: Run, tmp_path: Path, capsys) -> None:
    bare = imported_run(tmp_path / "bare", statistics=False)
    assert "has no accuracy predictor" in refused(capsys, 1, "--run", bare.folder)[0]
    error, hint = refused(capsys, 1, "--run", made.folder, "--energy", "5mJ")
    assert "nothing predicts energy_mj of here" in error
    assert "--target energy_mj" in hint
    alone = searchable_run(tmp_path / "alone", {})
    error, hint = refused(capsys, 1, "--run", alone.folder, "--latency", "5ms")
    assert "nothing predicts the latency of its subnets" in error
    assert hint.startswith(f"hint: hwnas profile --run {alone.folder}, then hwnas fit")
    (answer,) = found(capsys, alone, "--macs", "2M")["answers"]
    assert answer["recommended"]["costs"]["macs"] <= 2e6
    assert answer["recommended"]["settings"] is None


def test_the_run_is_this_folder_or_the_only_one_in_runs(
    elsewhere: Run, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no run is named" in refused(capsys, 2)[0]
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "one").symlink_to(elsewhere.folder)
    assert main(["search", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["run"] == "runs/one"
    (tmp_path / "runs" / "two").symlink_to(elsewhere.folder)
    error, hint = refused(capsys, 2)
    assert "2 runs in runs: runs/one, runs/two" in error
    assert hint == "hint: say which: --run runs/one"
    monkeypatch.chdir(elsewhere.folder)
    assert main(["search", "--json", "--quiet"]) == 0


def test_an_interrupted_search_goes_on_and_finds_the_same(elsewhere: Run) -> None:
    request = Request(budgets=parse_budgets({"latency": ("5ms",)}), seed=7)
    whole = search_run(elsewhere, request).front

    def interrupt(name: str, progress) -> None:
        if name == "latency 5ms" and progress.generation == 35:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(prepare(elsewhere, request), watch=interrupt)
    assert len(list((elsewhere.folder / "search" / "state").iterdir())) == 2
    told: list[tuple[str, int]] = []
    again = search(
        prepare(elsewhere, request), watch=lambda name, at: told.append((name, at.generation))
    ).front
    assert told[0] == ("latency 5ms", 31)
    assert (again.choices, again.answers) == (whole.choices, whole.answers)
    assert not (elsewhere.folder / "search" / "state").exists()


def test_killed_and_resumed(elsewhere: Run, monkeypatch) -> None:
    monkeypatch.setitem(ENGINES, "nsga2", Nsga2)
    budgets = parse_budgets({"latency": ("4ms,5ms,6ms",)})
    whole = search_run(elsewhere, Request(budgets=budgets)).front
    front = elsewhere.folder / "search" / "front.json"
    front.unlink()
    state = elsewhere.folder / "search" / "state"
    texts = "4ms,5ms,6ms"
    child = subprocess.Popen(
        [sys.executable, "-m", "hwnas", "search", "--run", elsewhere.folder, "--latency", texts,
         "--quiet"],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    while child.poll() is None and not (state.exists() and len(list(state.iterdir())) > 2):
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not front.exists()
    again = search_run(elsewhere, Request(budgets=budgets)).front
    assert (again.choices, again.answers) == (whole.choices, whole.answers)


def test_searching_needs_no_torch(made: Run) -> None:
    code = (
        "import sys; from hwnas.cli.main import main; "
        f"assert main(['search', '--run', {str(made.folder)!r}, '--verify', '0', '--quiet', "
        "'--latency', '1ms']) == 0; "
        "assert not {'torch', 'sklearn', 'pymoo', 'scipy'} & set(sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(hwnas.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=environment)


def test_another_supernet_makes_predictions_stale(tmp_path: Path, capsys) -> None:
    run = searchable_run(tmp_path / "run", {HERE: (Settings(),)})
    step = run.folder / "supernet"
    os.rename(step / "step-0.safetensors", step / "step-9.safetensors")
    (step / "LATEST").write_text("step-9.safetensors\n")
    error, hint = refused(capsys, 1, "--run", open_run(run.folder).folder)
    assert "was fitted after 0 steps of training, the supernet has 9" in error
    assert "hwnas fit --run" in hint
