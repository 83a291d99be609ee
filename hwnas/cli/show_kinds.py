"""What `hwnas show` says of each kind of file, by functions from the path to its text."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hwnas.cli import show_text as say
from hwnas.cli.output import millions, table
from hwnas.errors import FormatError, HwnasError


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """What was found; `problem` is what is wrong with it nevertheless."""

    kind: str
    document: dict[str, Any]
    text: str
    problem: HwnasError | None = None


def model(path: Path) -> Shown:
    """Return what an ONNX file says of itself, and whether its manifest agrees."""
    from hwnas.export.artifact import MANIFEST_FILE, read_manifest
    from hwnas.export.documents import to_document
    from hwnas.export.metadata import metadata_from, read_model
    from hwnas.io import digest_file, onnxwire

    content = read_model(path)
    about = metadata_from(onnxwire.metadata(content), str(path))
    outline = [
        ("size", say.megabytes(len(content))),
        ("sha256", digest_file(path)),
        ("operators", ", ".join(f"{k or 'ONNX'} {v}" for k, v in onnxwire.opsets(content).items())),
        ("nodes", str(len(onnxwire.nodes(content)))),
    ]
    document: dict[str, Any] = dict(outline)
    problem: HwnasError | None = None
    if about is None:
        outline.append(("metadata", "none of hwnas; validate it with its preprocessing as options"))
    else:
        document["metadata"] = to_document(about)
        outline += _of_metadata(document["metadata"])
    if (path.parent / MANIFEST_FILE).is_file():
        entry = read_manifest(path).files.get(path.name)
        if entry is not None and entry.sha256 != document["sha256"]:
            problem = _changed(path)
        says = "unknown to it" if entry is None else "changed" if problem else "as it says"
        outline.append(("manifest", says))
        document["manifest"] = says
    return Shown(
        kind="model", document=document, text=say.outline(path, "model", outline), problem=problem
    )


def _changed(path: Path) -> HwnasError:
    from hwnas.errors import GateError

    return GateError(f"{path}: was changed since it was exported", "export it anew: hwnas export")


def _of_metadata(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    how, classes = about["preprocessing"], about["classes"]
    batch = "any" if about["batch"] is None else str(about["batch"])
    return [
        ("architecture", f"{about['digest'][:12]} of {about['arch'].get('space')}"),
        ("precision", about["precision"]),
        ("input", f"{about['input']}, batch {batch}"),
        ("preprocessing", say.preprocessing(how)),
        ("classes", say.some_of(classes)),
    ]


def artifact(path: Path) -> Shown:
    """Return what a manifest says, and whether its files still are what it speaks of."""
    from hwnas.export.artifact import read_manifest, verify

    found = read_manifest(path)
    problem: HwnasError | None = None
    try:
        verify(path)
    except HwnasError as error:
        problem = error
    outline = [
        ("architecture", f"{found.digest[:12]} of {found.arch.get('space')}"),
        ("preprocessing", say.preprocessing(asdict(found.preprocessing))),
        ("input", found.input),
        ("classes", say.some_of(found.classes)),
        ("data", str(found.data.get("name", "-"))),
        ("supernet", say.supernet(found.supernet)),
        ("promised", say.estimates(found.promised)),
        ("measured", ", ".join(f"{k} {say.number(v)}" for k, v in found.measured.items()) or "-"),
        ("recommended", found.recommended),
        ("exported", f"{found.created} ({say.versions(found.versions)})"),
        ("files", f"{len(found.files)}, {'intact' if problem is None else problem.message}"),
    ]
    text = "\n".join([say.outline(path, "artifact", outline), "", say.model_table(found)])
    return Shown(kind="artifact", document=found.to_json(), text=text, problem=problem)


def family(path: Path) -> Shown:
    """Return the members of a family, and whether their files are intact."""
    from hwnas.export.documents import to_document
    from hwnas.export.family import read_family, verify_family

    found = read_family(path)
    problem: HwnasError | None = None
    try:
        verify_family(path)
    except HwnasError as error:
        problem = error
    outline = [
        ("space", found.space),
        ("device", found.device),
        ("exported", f"{found.created} ({say.versions(found.versions)})"),
        ("files", "intact" if problem is None else problem.message),
    ]
    lines = say.family_table(found)
    text = "\n".join([say.outline(path, "family", outline), "", lines])
    return Shown(kind="family", document=to_document(found), text=text, problem=problem)


def subnet(path: Path) -> Shown:
    """Return what the card of a subnet says."""
    document = say.read_any(path)
    accuracy, proof = document.get("accuracy"), document.get("proof") or {}
    outline = [
        ("architecture", f"{document['digest'][:12]} of {document['space']}"),
        ("costs", say.costs(document["costs"])),
        ("supernet", say.supernet(document["supernet"])),
        ("data", str((document.get("data") or {}).get("name", "-"))),
        ("accuracy", "not measured" if accuracy is None
         else f"{accuracy['value']:.2%} of {accuracy['images']} {accuracy['part']} images"),
        ("batch norms", str(document["calibration"]["how"])),
        ("proof", f"{'equal bit for bit' if proof.get('equal_bits') else 'equal nearly'} on "
                  f"{proof.get('images')} images ({proof.get('part')})"),
        ("promised", say.estimates((document.get("promised") or {}).get("predicted", {}))),
        ("extracted", f"{document['created']} ({say.versions(document['versions'])})"),
    ]  # fmt: skip
    return Shown(kind="subnet", document=document, text=say.outline(path, "subnet", outline))


def architecture(path: Path) -> Shown:
    """Return the genes of an architecture, and its costs where its space is known."""
    from hwnas.profiling.sampling import read_archs, space_of

    ((place, document), *more) = read_archs(path).items()
    if more:
        raise FormatError(f"{path}: holds {len(more) + 1} architectures")
    of = space_of(document, place)
    arch = of.arch_from_json(document, place)
    costs = of.cost([arch])
    numbers = {"macs": int(costs.macs[0]), "params": int(costs.params[0])}
    genes = " ".join(f"{name}={value}" for name, value in arch.items())
    outline = [
        ("architecture", f"{arch.digest[:12]} of {of.name}"),
        ("costs", say.costs(numbers)),
        ("genes", genes),
    ]
    document = {**arch.to_json(), "digest": arch.digest, "costs": numbers}
    return Shown(
        kind="architecture", document=document, text=say.outline(path, "architecture", outline)
    )


def front(path: Path) -> Shown:
    """Return the answers of a search, and its choices."""
    from hwnas.pipeline.fronts import read_front

    found = read_front(path)
    answers = [
        [
            answer.budget or "none",
            str(answer.feasible),
            *_chosen(answer.recommended, found.choices),
            answer.reason,
        ]
        for answer in found.answers
    ]
    outline = [
        ("space", found.space),
        ("choices", str(len(found.choices))),
        ("engine", str(found.provenance.get("engine", "-"))),
        ("searched", found.created),
    ]
    header = ["budget", "feasible", "recommended", "predicted", "reason"]
    text = "\n".join([say.outline(path, "front", outline), "", table(header, answers, right=(1,))])
    return Shown(kind="front", document=say.read_any(path), text=text)


def _chosen(index: int | None, choices: Sequence[Any]) -> tuple[str, str]:
    if index is None:
        return "-", "-"
    predicted = {name: asdict(value) for name, value in choices[index].predicted.items()}
    return str(choices[index].digest[:12]), say.estimates(predicted)


def run(path: Path) -> Shown:
    """Return what a run is and what it has so far."""
    from hwnas.pipeline.rundir import latest_step, open_run

    found = open_run(path.parent)
    try:
        supernet = f"{latest_step(found)} steps"
    except HwnasError:
        supernet = "none yet"
    parts = {
        "profiles": "profiles/*.jsonl", "predictors": "predictors/*/card.json",
        "front": "search/front.json", "subnets": "subnets/*/card.json",
        "artifacts": "artifacts/*/manifest.json", "family": "artifacts/family/family.json",
        "landmarks": "search/landmarks.jsonl", "report": "report.html",
    }  # fmt: skip
    there = {
        name: [str(one.relative_to(path.parent)) for one in sorted(path.parent.glob(pattern))]
        for name, pattern in parts.items()
    }
    outline = [
        ("status", found.status),
        ("space", found.space),
        ("origin", ", ".join(f"{k} {v}" for k, v in found.origin.items() if v) or "-"),
        ("supernet", supernet),
        *((name, ", ".join(names) or "none yet") for name, names in there.items()),
        ("versions", say.versions(found.versions)),
    ]
    document = {**say.read_any(path), "supernet": supernet, **there}
    return Shown(kind="run", document=document, text=say.outline(path.parent, "run", outline))


def profile(path: Path) -> Shown:
    """Return the device of a profile and what was measured."""
    from hwnas.cli.profile_measuring import groups_table
    from hwnas.profiling.profiles import read_profile
    from hwnas.profiling.records import header_json
    from hwnas.profiling.summaries import groups

    found = read_profile(path)
    summary = groups(list(found.records.values()))
    here = found.header.device
    outline = [
        ("device", f"{here.name}: {here.cpu}, {here.cores} cores, {here.os}"),
        ("runtimes", say.versions(found.header.runtimes)),
        ("records", f"{len(found.measured())}, failed {len(found.failed())}"),
    ]
    document = {**header_json(found.header), "groups": [asdict(group) for group in summary]}
    text = "\n".join([say.outline(path, "profile", outline), "", groups_table(summary)])
    return Shown(kind="profile", document=document, text=text)


def accuracies(path: Path) -> Shown:
    """Return how many accuracies a journal holds, and their range."""
    header, lines = say.read_any_journal(path)
    values = [float(line["accuracy"]) for line in lines]
    span = f"{min(values):.2%} to {max(values):.2%}" if values else "-"
    outline = [
        ("space", f"{header.get('space')}, supernet after {header.get('step')} steps"),
        ("subnets", str(len(values))),
        ("accuracy", span),
    ]
    document = {**header, "subnets": len(values)}
    return Shown(
        kind="accuracies", document=document, text=say.outline(path, "accuracies", outline)
    )


def landmarks(path: Path) -> Shown:
    """Return the networks that a run is compared with."""
    from hwnas.pipeline.landmarks import read_landmarks

    found = read_landmarks(path)
    rows = [
        [one.name, f"{one.accuracy:.2%}", f"{one.latency:.3f} ms", one.grade or "-",
         "-" if one.macs is None else millions(one.macs), one.device or "-"]
        for one in found
    ]  # fmt: skip
    header = ["network", "held-out", "latency", "grade", "MACs", "device"]
    lines = table(header, rows, right=(1, 2, 4))
    text = "\n".join([say.outline(path, "landmarks", [("networks", str(len(found)))]), "", lines])
    document = {"landmarks": [asdict(one) for one in found]}
    return Shown(kind="landmarks", document=document, text=text)


def landmark(path: Path) -> Shown:
    """Return what a network that was trained to compare with is."""
    document = say.read_any(path)
    training = document["training"]
    data = training.get("data") or {}
    files = sorted(one.name for one in path.parent.glob("*.onnx"))
    outline = [
        ("network", f"{document['network']} of timm"),
        ("costs", say.costs(document)),
        ("accuracy", f"{document['accuracy']:.2%} of {training['heldout']} held-out images"),
        ("training", f"{training['epochs']} epochs, {training['images']:,} images"),
        ("data", str(data.get("name", "-"))),
        ("files", ", ".join(files) or "not exported yet"),
        ("trained", f"{document['created']} ({say.versions(document['versions'])})"),
    ]
    return Shown(kind="landmark", document=document, text=say.outline(path, "landmark", outline))


def verified(path: Path) -> Shown:
    """Return what was promised of the subnets that a search verified, and what was measured."""
    _, lines = say.read_any_journal(path)
    rows = []
    for line in lines:
        both = [
            f"{name} {say.value(name, line['predicted'][name]['mean'])} / {say.value(name, number)}"
            for name, number in line["measured"].items()
            if name in line["predicted"]
        ]
        kept = "yes" if line["met"] else "no"
        rows.append(
            [line["digest"][:12], line["budget"], ", ".join(both), line["grade"] or "-", kept]
        )
    header = ["subnet", "budget", "predicted / measured", "grade", "kept"]
    outline = say.outline(path, "verified", [("measurements", str(len(lines)))])
    text = "\n".join([outline, "", table(header, rows, right=())])
    return Shown(kind="verified", document={"verified": lines}, text=text)


def predictor(path: Path) -> Shown:
    """Return what the card of a predictor says."""
    document = say.read_any(path)
    fitted = document.get("fitted", document)
    about = fitted.get("about") or {}
    outline = [
        ("target", str(fitted.get("target", "-"))),
        ("rows", str(fitted.get("rows", "-"))),
        *((str(key), str(value)) for key, value in about.items()),
        ("fitted with", say.versions(document.get("versions", {}))),
    ]
    return Shown(kind="predictor", document=document, text=say.outline(path, "predictor", outline))


def verdict(path: Path) -> Shown:
    """Return what `hwnas validate` found."""
    document = say.read_any(path)
    rows = [
        [gate["name"], gate["state"], gate["wanted"], gate["found"]] for gate in document["gates"]
    ]
    outline = [("file", document["file"]), ("verdict", document["state"])]
    lines = table(["gate", "state", "wanted", "found"], rows, right=())
    text = "\n".join([say.outline(path, "verdict", outline), "", lines])
    return Shown(kind="verdict", document=document, text=text)


def pack(path: Path) -> Shown:
    """Return what a pack holds."""
    from hwnas.profiling.packs import read_pack

    found = read_pack(path)
    precisions = sorted({one.precision for one in found.models})
    outline = [("models", str(len(found.models))), ("precisions", ", ".join(precisions))]
    document = {"models": len(found.models), "precisions": precisions}
    return Shown(kind="pack", document=document, text=say.outline(path, "pack", outline))


def plain(path: Path) -> Shown:
    """Return a small document as it stands."""
    document = say.read_any(path)
    kind = str(document["schema"]).partition("/")[2]
    return Shown(kind=kind, document=document, text=json.dumps(document, indent=1))
