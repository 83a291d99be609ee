"""Which architectures get measured."""

import json

import numpy as np
import pytest

import hwnas
from hwnas.errors import FormatError, UsageError
from hwnas.profiling.records import Settings, arch_digest, record_key
from hwnas.profiling.sampling import arch_document, covering, read_archs, space_of
from hwnas.spaces import Space


@pytest.fixture(scope="module", params=["nano", "nasvit"])
def space(request):
    return hwnas.space(request.param)


@pytest.mark.parametrize("n", [1, 2, 3, 50, 150])
def test_as_many_different_ones_as_asked_for(space, n):
    found = covering(space, n)
    assert len(found) == len(set(found)) == n
    ends = [space.smallest(), space.largest()][:n]
    assert (found if n < 3 else found[1:3]) == ends
    low, high = space.cost([space.smallest(), space.largest()]).macs
    middle = space.cost(found[:1]).macs[0]
    assert n < 3 or abs(middle - (low + high) / 2) < (high - low) / (2 if n == 3 else n)


def test_every_part_of_the_range_is_covered(space):
    macs = np.sort(space.cost(covering(space, 152)).macs)
    counts, _ = np.histogram(macs, bins=30, range=(macs[0], macs[-1]))
    assert counts.min() >= 3  # 5 were evenly spread; 150 uniform ones leave parts empty
    rng = np.random.default_rng(0)
    naive = space.cost(space.sample(152, rng)).macs
    assert np.histogram(naive, bins=30, range=(macs[0], macs[-1]))[0].min() == 0


def test_whoever_stops_early_has_covered_it_too(space):
    found = covering(space, 150)
    whole, early = (space.cost(archs).macs for archs in (found, found[:30]))
    counts, _ = np.histogram(early, bins=5, range=(whole.min(), whole.max()))
    assert counts.min() >= 2


def test_equal_seeds_give_equal_architectures(space):
    assert covering(space, 20, seed=3) == covering(space, 20, seed=3)
    assert covering(space, 20, seed=3)[3:] != covering(space, 20, seed=4)[3:]


def test_a_tiny_space_is_taken_whole():
    nano = hwnas.space("nano")
    free = ("mb1.kernel", "mb2.kernel", "stem.width")
    genes = {name: values if name in free else values[:1] for name, values in nano.genes.items()}
    tiny = Space("tiny", genes=genes, parts=nano.parts, side=nano.side, options=nano.options)
    assert len(set(covering(tiny, 8))) == 8
    with pytest.raises(UsageError, match="only 8"):
        covering(tiny, 9)
    with pytest.raises(UsageError, match="0 architectures"):
        covering(tiny, 0)


def test_a_document_states_only_unusual_options():
    usual, other = hwnas.space("nano"), hwnas.space("nano", classes=7, channels=1)
    arch = usual.smallest()
    assert "options" not in arch_document(usual, arch)
    document = arch_document(other, arch)
    assert document["options"] == {"classes": 7, "channels": 1}
    assert dict(space_of(document).options) == dict(other.options)
    assert other.arch_from_json(document) == arch


def test_options_make_another_measurement_of_the_same_architecture():
    usual, other = hwnas.space("nano"), hwnas.space("nano", classes=7)
    arch = usual.smallest()
    documents = [arch_document(space, arch) for space in (usual, other)]
    assert {arch_digest(document) for document in documents} == {arch.digest}
    keys = {record_key(document, "onnxruntime", Settings()) for document in documents}
    assert len(keys) == 2


def test_documents_with_strange_options_are_refused():
    document = {**hwnas.space("nano").smallest().to_json(), "options": [1]}
    with pytest.raises(FormatError, match="options"):
        space_of(document)


FORMS = {
    "lines": lambda documents: "\n".join(map(json.dumps, documents)) + "\n\n",
    "one": lambda documents: json.dumps(documents[0], indent=1),
    "list": json.dumps,
    "held": lambda documents: json.dumps([{"arch": one, "macs": 1} for one in documents]),
}


@pytest.mark.parametrize("form", FORMS)
def test_files_of_architectures(tmp_path, form):
    documents = [arch.to_json() for arch in covering(hwnas.space("nano"), 3)]
    path = tmp_path / "archs.json"
    path.write_text(FORMS[form]([*documents, documents[0]]))
    assert [*read_archs(path).values()] == (documents[:1] if form == "one" else documents)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no architectures"),
        ("[]", "no architectures"),
        ("{}\n{", "line 2: not JSON"),
        ('{"a": 1}\n', "not a file of hwnas"),
        ("3", "archs.json"),
        ("[" * 100_000, "line 1: not JSON"),
        ('{"a":' * 500 + "1" + "}" * 500, "line 1: JSON nested more than 100 deep"),
        ('{"genes": {"d": NaN}}', "line 1: not JSON"),
    ],
)
def test_files_that_hold_something_else(tmp_path, text, words):
    path = tmp_path / "archs.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=words):
        read_archs(path)
    with pytest.raises(UsageError, match="no such file"):
        read_archs(tmp_path / "none")
