"""Which model was measured: forms of a network are told apart, values of weights are not."""

from dataclasses import replace

import numpy as np
import onnx
import pytest

import hwnas
from hwnas.errors import FormatError
from hwnas.export import onnx_from_description
from hwnas.pipeline.models import BUILDERS
from hwnas.profiling.graphs import Graphs, changed_models, graph_digest, graph_of
from hwnas.profiling.jobs import Job
from hwnas.profiling.packs import stand_in
from hwnas.profiling.profiles import (
    Profile,
    best_records,
    diff_profiles,
    merge_profiles,
    read_profile,
    write_profile,
)
from hwnas.profiling.records import Failure, Settings, arch_digest
from hwnas.spaces import Space
from hwnas.testing.onnx_models import conv_stack
from hwnas.testing.profiles import made_up_profile

ARCHS = hwnas.space("nano").sample(4, np.random.default_rng(0))


@pytest.fixture(scope="module")
def nano() -> Space:
    return hwnas.space("nano")


def edited(change) -> bytes:
    model = onnx.load_from_string(conv_stack())
    change(model)
    return model.SerializeToString()


def test_values_of_weights_make_no_difference(nano) -> None:
    network = nano.network(nano.largest())
    models = [onnx_from_description(network, seed=seed) for seed in (0, 1)]
    assert models[0] != models[1]
    assert graph_digest(models[0]) == graph_digest(models[1]) == graph_digest(stand_in(models[0]))


@pytest.mark.parametrize("precision", BUILDERS)
def test_a_packed_model_is_the_one_that_was_packed(nano, precision) -> None:
    built = BUILDERS[precision](nano.network(nano.smallest()))
    assert graph_digest(stand_in(built)) == graph_digest(built)


def test_every_precision_and_form_is_another_model(nano) -> None:
    network = nano.network(nano.largest())
    models = [build(network) for build in BUILDERS.values()]
    models += [onnx_from_description(network, linears="product"), conv_stack()]
    assert len({graph_digest(model) for model in models}) == len(models)


def rename(model) -> None:
    model.producer_version = "another"
    model.metadata_props.add(key="made", value="today")
    for number, node in enumerate(model.graph.node):
        node.name = f"node {number}"


def shuffle_weights(model) -> None:
    weights = list(model.graph.initializer)
    del model.graph.initializer[:]
    model.graph.initializer.extend(weights[::-1])


@pytest.mark.parametrize("change", [rename, shuffle_weights])
def test_what_a_runtime_does_not_see_makes_no_difference(change) -> None:
    assert graph_digest(edited(change)) == graph_digest(conv_stack())


def other_operator(model) -> None:
    model.graph.node[1].op_type = "Tanh"


def other_padding(model) -> None:
    model.graph.node[0].attribute[0].ints[0] = 2


def other_opset(model) -> None:
    model.opset_import[0].version = 18


def other_weight_type(model) -> None:
    model.graph.initializer[0].data_type = onnx.TensorProto.FLOAT16


def other_batch(model) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4


@pytest.mark.parametrize(
    "change", [other_operator, other_padding, other_opset, other_weight_type, other_batch]
)
def test_what_a_runtime_sees_makes_another_model(change) -> None:
    assert graph_digest(edited(change)) != graph_digest(conv_stack())


@pytest.mark.parametrize("raw", [True, False])
def test_values_of_shapes_count(raw) -> None:
    def with_shape(*shape) -> bytes:
        array = onnx.numpy_helper.from_array(np.array(shape, np.int64), "s")
        plain = onnx.helper.make_tensor("s", onnx.TensorProto.INT64, [len(shape)], shape)
        return edited(lambda model: model.graph.initializer.append(array if raw else plain))

    assert graph_digest(with_shape(1, 2)) == graph_digest(with_shape(1, 2))
    assert graph_digest(with_shape(1, 2)) != graph_digest(with_shape(1, 3))


def test_what_is_no_model_has_no_graph() -> None:
    assert graph_of(b"no model") is None
    with pytest.raises(FormatError):
        graph_digest(b"no model")


def profile(*graphs: str | None, at: float = 0.0, grade: str = "A") -> Profile:
    made = made_up_profile("d", [(arch, 1.0) for arch in ARCHS[: len(graphs)]])
    records = [
        replace(record, graph=graph, measured_at=at, grade=grade)
        for record, graph in zip(made.records.values(), graphs, strict=True)
    ]
    return Profile(header=made.header, records=best_records(records))


def jobs_of(made: Profile) -> list[Job]:
    return [
        Job(arch=record.arch, backend=record.backend, settings=record.settings)
        for record in made.records.values()
    ]


def graphs_are(*now: str | None, costly: bool = False) -> tuple[Graphs, list[str]]:
    looked: list[str] = []
    table = dict(zip([arch.digest for arch in ARCHS], now, strict=False))

    def of(arch, settings) -> str | None:
        digest = hwnas.space("nano").arch_from_json(arch).digest
        looked.append(digest)
        if table[digest] == "broken":
            raise ValueError("cannot be built")
        return table[digest]

    return Graphs(of=of, costly=costly), looked


@pytest.mark.parametrize("costly", [True, False])
@pytest.mark.parametrize(
    ("known", "now", "changed"),
    [
        (("a", "b", "c"), ("a", "b", "c"), set()),
        (("a", "b", "c"), ("x", "y", "z"), {0, 1, 2}),
        (("a", "b", "c"), ("a", "x", "c"), {1}),
        ((None, "b", "c"), ("x", "b", "c"), set()),  # of an older version
        ((None, "b", "c"), ("x", "y", "z"), {1, 2}),
        (("a", "b", "c"), ("a", None, "broken"), set()),
    ],
)
def test_what_was_measured_of_another_model_is_found(known, now, changed, costly) -> None:
    made = profile(*known)
    graphs, looked = graphs_are(*now, costly=costly)
    jobs = jobs_of(made)
    assert changed_models(jobs, made, graphs) == {jobs[number].key for number in changed}
    assert len(looked) == len(set(looked))


MANY = hwnas.space("nano").sample(12, np.random.default_rng(0))


@pytest.mark.parametrize("newer", [3.0, -3.0])  # also where the clock of a board was set back
@pytest.mark.parametrize("redone", [2, 5, 11, 12])
def test_a_session_that_was_killed_while_it_measured_another_form_goes_on(redone, newer) -> None:
    made = made_up_profile("d", [(arch, 1.0) for arch in MANY])
    now = {arch.digest: f"new {arch.digest}" for arch in MANY}
    records = []
    for number, record in enumerate(made.records.values()):
        more = [replace(record, graph="old", measured_at=float(number))]
        if number < redone:
            more.append(replace(more[0], graph=now[record.key[0]], measured_at=100 * newer))
        records.append(more)
    known = Profile(header=made.header, records={m[-1].key: m[-1] for m in records})
    looked: list[str] = []

    def of(arch, settings) -> str:
        looked.append(arch_digest(arch))
        return now[arch_digest(arch)]

    jobs = [
        replace(job, settings=replace(job.settings, threads=threads))
        for job in jobs_of(made)
        for threads in (1, 2)
    ]
    left = [job.key for job in jobs_of(known)[redone:]]
    assert changed_models(jobs, known, Graphs(of=of, costly=True)) == set(left)
    assert len(looked) == len(MANY) if left else len(looked) <= 4  # all were built only if needed


def test_each_model_is_looked_at_once_and_modules_never() -> None:
    made = profile("a")
    (record,) = made.records.values()
    more = [replace(record, settings=Settings(threads=n)) for n in (2, 3)]
    more.append(replace(record, backend="torch"))
    made = Profile(header=made.header, records=best_records([record, *more]))
    graphs, looked = graphs_are("x")
    assert len(changed_models(jobs_of(made), made, graphs)) == 3
    assert len(looked) == 1
    assert changed_models(jobs_of(made), None, graphs) == set()
    assert changed_models(jobs_of(made), made, None) == set()


def test_of_two_models_the_last_measured_counts_and_of_one_the_better_grade() -> None:
    old, new = profile("a", at=1.0, grade="A"), profile("b", at=2.0, grade="D")
    unknown = profile(None, at=0.0, grade="B")
    for first, second in ((old, new), (new, old)):
        assert merge_profiles(first, second).records == new.records
    again = profile("b", at=3.0, grade="C")
    assert merge_profiles(new, again).records == again.records
    assert merge_profiles(merge_profiles(old, new), unknown).records == unknown.records
    assert diff_profiles(old, new).other_models == 1
    assert diff_profiles(old, unknown).other_models == diff_profiles(new, again).other_models == 0


def test_in_a_file_the_last_line_counts_whatever_the_clock_says(tmp_path) -> None:
    path = tmp_path / "p.jsonl"
    new, old = profile("b", at=1.0), profile("a", at=2.0)
    write_profile(path, old)
    write_profile(tmp_path / "q.jsonl", new)
    with path.open("a") as file:
        file.write((tmp_path / "q.jsonl").read_text().splitlines()[1] + "\n")
    assert read_profile(path).records == new.records


def test_a_failure_of_the_new_model_is_no_result_of_the_old_one() -> None:
    (record,) = profile("a", at=1.0).records.values()
    failed = replace(
        record, graph="b", measured_at=2.0, latency=None, grade=None,
        failure=Failure(kind="crash", reason="r"),
    )  # fmt: skip
    assert best_records([failed, record])[record.key] == failed
    unbuilt = replace(failed, graph=None)
    assert best_records([unbuilt, record])[record.key] == record
