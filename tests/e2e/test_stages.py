"""Which stages of `hwnas run` are due, with stages that only write files."""

import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hwnas.errors import FormatError, HwnasError, InfeasibleError, UsageError
from hwnas.pipeline.config import read_recipe
from hwnas.pipeline.deploying import stages_of
from hwnas.pipeline.deployments import parse_settings
from hwnas.pipeline.fronts import Answer, Choice, Front, write_front
from hwnas.pipeline.rundir import create_run
from hwnas.pipeline.stages import (
    STAGES_FILE,
    Command,
    Stage,
    fingerprint,
    plan,
    read_done,
    run_stages,
)
from hwnas.spaces import space

STAGES = [
    Stage(name="one", commands=(("write", "a"),), writes=("a",), binding="x"),
    Stage(name="two", commands=(("write", "b"), ("write", "c")), reads=("a",), writes=("b", "c")),
    Stage(name="three", commands=(("write", "d"),), reads=("c",), writes=("d",)),
]


class Writer:
    """Does the commands: writes files, or fails."""

    def __init__(self, folder: Path, content: str = "1", fails_at: str = "") -> None:
        self.folder, self.content, self.fails_at = folder, content, fails_at
        self.wrote: list[str] = []

    def __call__(self, command: Command) -> None:
        if command[1] == self.fails_at:
            raise HwnasError("disk full")
        (self.folder / command[1]).write_text(self.content)
        self.wrote.append(command[1])


def done(folder: Path, stages: list[Stage] = STAGES, **options: str) -> list[str]:
    writer = Writer(folder, **{k: v for k, v in options.items() if k != "start"})
    run_stages(
        stages, folder, launch=writer, start=options.get("start"), tell=lambda step: None
    )  # fmt: skip
    return writer.wrote


def due(folder: Path, stages: list[Stage] = STAGES, start: str | None = None) -> list[str]:
    return [step.stage.name for step in plan(stages, folder, start=start) if step.due]


def test_nothing_is_done_twice(tmp_path: Path) -> None:
    assert due(tmp_path) == ["one", "two", "three"]
    assert done(tmp_path) == ["a", "b", "c", "d"]
    assert due(tmp_path) == []
    assert done(tmp_path) == []


def test_a_failure_keeps_what_was_done_before(tmp_path: Path) -> None:
    with pytest.raises(HwnasError, match="disk full"):
        done(tmp_path, fails_at="c")
    assert due(tmp_path) == ["two", "three"]
    assert done(tmp_path) == ["b", "c", "d"]


def test_a_stage_that_fails_when_it_is_done_again_is_due(tmp_path: Path) -> None:
    done(tmp_path)
    with pytest.raises(HwnasError, match="disk full"):
        done(tmp_path, start="two", fails_at="c")
    assert due(tmp_path) == ["two", "three"]
    assert set(read_done(tmp_path)) == {"one", "two", "three"}  # how long they took is known


def test_what_reads_a_changed_file_is_done_again(tmp_path: Path) -> None:
    (tmp_path / "image").write_text("1")
    stages = [replace(STAGES[0], reads=("image",)), *STAGES[1:]]
    done(tmp_path, stages)
    assert due(tmp_path, stages) == []
    (tmp_path / "image").write_text("2")
    assert due(tmp_path, stages) == ["one", "two", "three"]
    assert done(tmp_path, stages) == ["a"]


def test_equal_outputs_end_the_chain(tmp_path: Path) -> None:
    done(tmp_path)
    (tmp_path / "b").unlink()
    assert due(tmp_path) == ["two", "three"]  # a plan cannot know what comes out
    assert done(tmp_path) == ["b", "c"]


def test_a_changed_setting(tmp_path: Path) -> None:
    done(tmp_path)
    changed = [Stage(name="one", commands=STAGES[0].commands, writes=("a",), binding="y")]
    assert done(tmp_path, [*changed, *STAGES[1:]], content="1") == ["a"]
    assert done(tmp_path, STAGES, content="2") == ["a", "b", "c", "d"]


def test_from_a_stage_on(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--from two: one before it is due"):
        plan(STAGES, tmp_path, start="two")
    done(tmp_path)
    assert due(tmp_path, start="two") == ["two", "three"]
    assert done(tmp_path, start="two") == ["b", "c", "d"]
    with pytest.raises(UsageError, match="unknown stage 'tow'; did you mean two"):
        plan(STAGES, tmp_path, start="tow")


def test_a_damaged_record(tmp_path: Path) -> None:
    (tmp_path / STAGES_FILE).write_text("{")
    with pytest.raises(FormatError, match="not JSON"):
        plan(STAGES, tmp_path)


def test_a_file_that_another_command_wrote_over_is_written_again(tmp_path: Path) -> None:
    done(tmp_path)
    (tmp_path / "d").write_text("another answer")
    assert [step.why for step in plan(STAGES, tmp_path)][2] == "d was changed since"
    assert done(tmp_path) == ["d"]
    assert due(tmp_path) == []


def test_patience_changes_nothing_and_words_only_without_a_binding(tmp_path: Path) -> None:
    done(tmp_path)
    forced = [Stage(name="one", commands=(("write", "other", "--set", "x=1"),), writes=("a",),
                    binding="x"),
              Stage(name="two", commands=(("write", "b", "--force"), ("write", "c")),
                    reads=("a",), writes=("b", "c")), STAGES[2]]  # fmt: skip
    assert due(tmp_path, forced) == []


def test_from_another_folder_nothing_has_changed(tmp_path: Path, monkeypatch) -> None:
    recipe = tmp_path / "my.toml"
    recipe.write_text('[data]\npath = "images"\n[deploy]\nmodels = 8\n')
    for part in "train", "test":
        (tmp_path / "images" / part / "bags").mkdir(parents=True)
    (tmp_path / "runs").mkdir()
    seen = []
    for here, run in (".", "runs/a"), ("runs", "a"), ("runs", "../runs/a"):
        monkeypatch.chdir(tmp_path / here)
        source = os.path.relpath(recipe)
        stages = stages_of(read_recipe(source), source, Path(run))
        seen.append([fingerprint(stage, Path(run)) for stage in stages])
    assert seen[0] == seen[1] == seen[2]


def test_what_reads_nothing_of_a_due_stage_is_not_planned(tmp_path: Path) -> None:
    done(tmp_path)
    apart = Stage(name="apart", commands=(("write", "e"),), writes=("e",))
    done(tmp_path, [*STAGES, apart])
    (tmp_path / "b").unlink()
    assert due(tmp_path, [*STAGES, apart]) == ["two", "three"]


def test_only_what_follows_a_changed_budget_is_due(tmp_path: Path) -> None:
    recipe = read_recipe("nano-digits")
    stages = stages_of(recipe, "nano-digits", tmp_path)
    for stage in stages:
        for pattern in stage.writes:
            path = tmp_path / pattern.replace("*", "x")
            path.parent.mkdir(parents=True, exist_ok=True)
            if pattern.endswith("family.json"):
                continue
            path.write_text("written")
    stages = [stage for stage in stages if stage.name in {"train", "profile", "fit", "search"}]
    run_stages(stages, tmp_path, launch=lambda command: None, tell=lambda step: None)
    changed = ['deploy.latency=["50%"]']
    again = stages_of(read_recipe("nano-digits", changed), "other.toml", tmp_path,
                      assignments=changed, force=True)[:4]  # fmt: skip
    assert due(tmp_path, again) == ["search"]


@pytest.mark.parametrize(
    ("changed", "settings", "precision"),
    [
        ([], {}, None),
        (["deploy.threads=[2,4]"], {"backend": "onnxruntime", "precision": "fp32"}, None),
        (["deploy.threads=2"],
         {"backend": "onnxruntime", "threads": "2", "precision": "fp32"}, None),
        (["deploy.precisions=['fp32','int8_dynamic']"],
         {"backend": "onnxruntime", "threads": "1"}, "fp32,int8_dynamic"),
        (["deploy.backends=['onnxruntime','openvino']", "deploy.threads=[1,2]",
          "deploy.precisions=['fp32','bf16']"], {}, None),
    ],
)  # fmt: skip
def test_a_search_chooses_among_all_that_is_measured(
    changed: list[str], settings: dict[str, str], precision: str | None
) -> None:
    stages = stages_of(read_recipe("nano-digits", changed), "nano-digits", Path("run"))
    words = {
        stage.name: (stage.commands() if callable(stage.commands) else stage.commands)[0]
        for stage in stages
    }
    search, export, validate = (
        dict(zip(words[name], words[name][1:], strict=False))
        for name in ("search", "export", "validate")
    )
    assert export.get("--precision") == precision
    threads = settings.get("threads", "1")
    assert export.get("--threads", "1") == validate.get("--threads", "1") == threads
    assert ("--settings" in search) == bool(changed)
    if changed:
        usual = {"batch": "1", "workers": "1", "pages": "default"}
        assert parse_settings(search["--settings"]) == {**settings, **usual}


def test_a_search_follows_predictors_that_say_something_else(tmp_path: Path) -> None:
    stages = [
        replace(stage, commands=((stage.name,),), writes=())
        for stage in stages_of(read_recipe("nano-digits"), "nano-digits", tmp_path)
        if stage.name in {"search", "report"}
    ]
    folder = tmp_path / "predictors" / "latency" / "sources" / "0"
    folder.mkdir(parents=True)

    def done_after(file: str, content: str) -> list[str]:
        (folder / file).write_text(content)
        launched: list[str] = []
        run_stages(
            stages, tmp_path, launch=lambda command: launched.append(command[0]),
            tell=lambda step: None,
        )  # fmt: skip
        return launched

    assert done_after("card.json", "fitted") == ["search", "report"]
    assert done_after("card.json", "fitted") == []
    assert done_after("card.json", "fitted on more") == ["search", "report"]
    assert done_after("evaluation.json", "fitted in 2 s") == ["report"]


def test_the_report_follows_a_verdict(tmp_path: Path) -> None:
    def stages(*changed: str) -> list[Stage]:
        recipe = read_recipe("nano-digits", changed)
        every = stages_of(recipe, "nano-digits", tmp_path, assignments=changed)
        return [stage for stage in every if stage.name in {"validate", "report"}]

    (tmp_path / "artifacts" / "family" / "x").mkdir(parents=True)
    (tmp_path / "report.html").write_text("a page")
    (tmp_path / "artifacts" / "family" / "x" / "verdict.json").write_text("a verdict")
    run_stages(stages(), tmp_path, launch=lambda command: None, tell=lambda step: None)
    assert due(tmp_path, stages()) == []
    assert due(tmp_path, stages("deploy.min_accuracy=0.5")) == ["validate", "report"]


def test_what_a_failed_stage_left_from_before_is_not_gone_on_with(tmp_path: Path) -> None:
    stage = Stage(name="a", commands=(("write", "a"),), writes=("a",), gates=lambda _: True)
    after = Stage(name="b", commands=(("write", "b"),), reads=("a",), writes=("b",))
    done(tmp_path, [stage, after])
    writer = Writer(tmp_path, fails_at="a")
    with pytest.raises(HwnasError, match="disk full"):
        run_stages([stage, after], tmp_path, launch=writer, start="a", tell=lambda step: None)


@pytest.mark.parametrize(
    ("recommended", "code", "goes_on"),
    [((None, 0), 3, True), ((None, 0), 5, True), ((None, 0), 1, False),
     ((None, None), 3, False), ((0, 0), 5, False)],
)  # fmt: skip
def test_a_run_goes_on_where_a_search_answers_some_budgets(
    tmp_path: Path, recommended: tuple[int | None, ...], code: int, goes_on: bool
) -> None:
    """What was found but could not be verified (5) is no answer."""
    of = space("nano", channels=1)
    arch = of.smallest()
    front = Front(
        space=of.name,
        options={},
        choices=(Choice(digest=arch.digest, genes=dict(arch), predicted={}, costs={}),),
        answers=tuple(
            Answer(
                budget=f"latency {number}ms", recommended=index, knee=None, reason="", feasible=0
            )
            for number, index in enumerate(recommended, 1)
        ),
    )
    run = create_run(tmp_path / "r", of=of, origin={"recipe": "0" * 64, "start": ""})

    def launch(command: tuple[str, ...]) -> None:
        write_front(run, front)
        error = HwnasError("not all of it")
        error.exit_code = code
        raise error

    stages = stages_of(read_recipe("nano-digits"), "nano-digits", run.folder)
    search = next(stage for stage in stages if stage.name == "search")
    with nullcontext() if goes_on else pytest.raises(HwnasError, match="not all of it"):
        run_stages([search], run.folder, launch=launch, tell=lambda step: None)
    if not goes_on:
        return
    # Only what would be the same again is not done again, and it counts all the same.
    assert due(run.folder, [search]) == ([] if code == 3 else ["search"])
    if code == 3:
        failure = run_stages([search], run.folder, launch=launch, tell=lambda step: None)
        assert isinstance(failure, InfeasibleError)
        assert "search did not find all" in failure.message


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, []),
        ({"threads": 2, "precision": "int8_dynamic"},
         ["--threads", "2", "--precision", "int8_dynamic"]),
        ({"backend": "openvino", "precision": "bf16"}, []),  # it does not tell where time goes
    ],
)  # fmt: skip
def test_time_is_explained_for_the_way_that_is_recommended(
    tmp_path: Path, changed: dict[str, Any], words: list[str]
) -> None:
    of = space("nano", channels=1)
    arch = of.smallest()
    usual = {"backend": "onnxruntime", "threads": 1, "batch": 1, "precision": "fp32"}
    choice = Choice(
        digest=arch.digest, genes=dict(arch), predicted={}, costs={}, settings={**usual, **changed}
    )
    answer = Answer(budget="latency 1ms", recommended=0, knee=0, reason="", feasible=1)
    run = create_run(tmp_path / "r", of=of, origin={"recipe": "0" * 64, "start": ""})
    write_front(run, Front(space=of.name, options={}, choices=(choice,), answers=(answer,)))
    stages = stages_of(read_recipe("nano-digits"), "nano-digits", run.folder)
    (command,) = next(stage for stage in stages if stage.name == "explain").resolved()
    at = command.index("--explain")
    assert list(command[at + 1 :]) == [arch.digest[:12], *words]


def test_after_a_failed_gate_the_run_goes_on(tmp_path: Path) -> None:
    gate = Stage(name="gate", commands=(("write", "x"), ("write", "y")), gates=lambda _: True)
    writer = Writer(tmp_path, fails_at="x")
    failure = run_stages(
        [gate, *STAGES], tmp_path, launch=writer, tell=lambda step: None
    )  # fmt: skip
    assert isinstance(failure, HwnasError)
    assert writer.wrote == ["y", "a", "b", "c", "d"]
    assert due(tmp_path, [gate, *STAGES]) == ["gate"]
    assert done(tmp_path, [gate, *STAGES]) == ["x", "y"]
