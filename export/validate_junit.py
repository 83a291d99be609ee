"""A verdict as JUnit XML, the format in which CI systems show test results: a case per gate."""

import re
import time
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from hwnas.export.validate_types import Gate, Verdict

_SUITE = "hwnas validate"
# What XML 1.0 cannot hold; a runtime's message may contain anything.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(verdict: Verdict) -> str:
    """Return the XML document.

    A gate that failed is a failure, one that could not be told an error, one that was not looked
    at is skipped; a figure without a limit is a case that passed.
    """
    root = Element("testsuites")
    suite = SubElement(
        root,
        "testsuite",
        {
            "name": _SUITE,
            "package": "hwnas",
            "id": "0",
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(verdict.created)),
            "hostname": "localhost",
            "tests": str(len(verdict.gates)),
            "failures": str(len(verdict.of("failed"))),
            "errors": str(len(verdict.of("unsure"))),
            "skipped": str(len(verdict.of("skipped"))),
            "time": f"{sum(gate.seconds for gate in verdict.gates):.3f}",
        },
    )
    properties = SubElement(suite, "properties")
    said = {"file": verdict.file, "sha256": verdict.sha256 or "", **verdict.versions}
    for name, value in said.items():
        SubElement(properties, "property", {"name": name, "value": _clean(value)})
    for gate in verdict.gates:
        _case(suite, gate)
    SubElement(suite, "system-out").text = _clean(
        "\n".join(f"{gate.name}: {gate.found}" for gate in verdict.gates if gate.found)
    )
    SubElement(suite, "system-err")
    indent(root)
    return tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: Element, gate: Gate) -> None:
    attributes = {"name": gate.name, "classname": _SUITE, "time": f"{gate.seconds:.3f}"}
    case = SubElement(suite, "testcase", attributes)
    if gate.state == "skipped":
        SubElement(case, "skipped", {"message": _clean(gate.reason)})
    elif gate.state in ("failed", "unsure"):
        kind = "failure" if gate.state == "failed" else "error"
        told = {"message": _clean(gate.reason), "type": gate.state}
        lines = [f"wanted: {gate.wanted}", f"found: {gate.found}", f"hint: {gate.hint}"]
        SubElement(case, kind, told).text = _clean("\n".join(lines))


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("?", text)
