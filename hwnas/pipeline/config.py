"""Reading recipes: TOML, `--set a.b=c`, and errors that name the key, the value and what fits."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError, field_validator

from hwnas.errors import AbsentError, FormatError, UsageError
from hwnas.io.paths import resolved, seen_from, typed
from hwnas.io.units import SHARE, parse
from hwnas.pipeline.shipped import recipe_names, recipe_text
from hwnas.training.recipe import Count
from hwnas.training.recipe import Recipe as TrainingRecipe
from hwnas.training.settings import Settings

__all__ = [
    "DeploySettings",
    "Recipe",
    "checked",
    "read_recipe",
    "recipe_names",
    "recipe_text",
    "to_toml",
]

_HINT = "`hwnas init` writes a recipe with every key explained"


def _several(value: Any) -> Any:  # noqa: ANN401 - what a TOML file may hold
    """Return the parts of a text such as `40%,60%`, and a single value as a list of one."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    return [value] if isinstance(value, int | float) else value


def _share(value: Any) -> Any:  # noqa: ANN401 - what a TOML file may hold
    share = parse(value, SHARE) if isinstance(value, str) else value
    if isinstance(share, int | float) and share > 1:
        raise UsageError(f"a share is {value!r}; accepted: up to 1, such as 0.9 or 90%")
    return share


def _texts(value: Any) -> Any:  # noqa: ANN401 - what a TOML file may hold
    several = _several(value)
    # So that a number gets the answer of a budget without a unit.
    return [str(part) for part in several] if isinstance(several, list) else several


Names = Annotated[tuple[str, ...], BeforeValidator(_texts)]


class DeploySettings(Settings):
    """What `hwnas run` does with the trained supernet."""

    latency: Names = Field(
        ("40%", "60%", "80%"), min_length=1, description="budgets, as for hwnas search --latency"
    )
    models: Count = Field(50, description="architectures whose latency is measured")
    accuracies: int = Field(60, ge=10, description="subnets whose accuracy is measured")
    threads: Annotated[tuple[Count, ...], BeforeValidator(_several)] = (1,)
    precisions: Names = ("fp32",)
    backends: Names = ("onnxruntime",)
    verify: Count = Field(3, description="subnets per budget that are built and measured")
    landmarks: Names = Field(
        (), description="other networks to compare with: names of timm, or auto; none: no stage"
    )
    min_accuracy: Annotated[float, Field(ge=0, le=1), BeforeValidator(_share)] = Field(
        0.0, description="of the exported models on the test images; 0: any"
    )

    @field_validator("latency")
    @classmethod
    def _are_budgets(cls, budgets: tuple[str, ...]) -> tuple[str, ...]:
        from hwnas.search.budgets import alternatives_of

        for budget in budgets:
            alternatives_of("latency", budget)
        return budgets


class Recipe(TrainingRecipe):
    """A whole recipe: training, and what comes after it."""

    deploy: DeploySettings = DeploySettings()


def read_recipe(source: str, assignments: Sequence[str] = ()) -> Recipe:
    """Return the recipe of a shipped name or a TOML file, with assignments `a.b=c` applied.

    A shipped name is that recipe whatever lies here under that name, such as the folder of a run.
    A relative `data.path` in a file is relative to the file; in an assignment, to this folder.
    """
    path = Path(source)
    in_file = source not in recipe_names() and (path.suffix == ".toml" or path.exists())
    text = _text_in(path) if in_file else recipe_text(source)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FormatError(f"{source}: not TOML ({error})", _HINT) from error
    if in_file:
        _resolve_path(document, path.parent)
    _prefer_given_folder(document, assignments)
    for assignment in assignments:
        _assign(document, assignment)
    return checked(document, source)


def checked(document: Mapping[str, Any], source: str) -> Recipe:
    """Return the recipe of a document; the first mistake in it is explained."""
    try:
        return Recipe.model_validate(document)
    except ValidationError as error:
        raise _explained(error, source) from error


def to_toml(recipe: TrainingRecipe, *, folder: Path | None = None) -> str:
    """Return the recipe as TOML, every key with its value; keys without a value are left out.

    `folder`: where the text will lie, so that its `data.path` holds wherever it is read from.
    """
    document = recipe.model_dump(mode="json", exclude_none=True)
    if folder is not None and recipe.data.path is not None:
        document["data"]["path"] = seen_from(folder, recipe.data.path)
    lines = ["# A resolved recipe: what was asked for, and the defaults of everything else."]
    for section, values in document.items():
        lines += _section(section, values)
    return "\n".join(lines) + "\n"


def _text_in(path: Path) -> str:
    if path.is_dir():
        raise UsageError(
            f"{path} is a folder; accepted: a recipe's file or name",
            f"for a folder of images: hwnas run own-images --set data.path={typed(path)}",
        )
    try:
        return path.read_text(encoding="utf-8-sig")  # Windows' editors begin files with a mark
    except FileNotFoundError as error:
        raise AbsentError(
            f"{path}: no such recipe",
            f"hwnas init own-images --out {typed(path)} writes one (hwnas init --list: others)",
        ) from error
    except OSError as error:
        raise FormatError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise FormatError(
            f"{path}: byte {error.start} is not UTF-8; accepted: a recipe as UTF-8 text",
            f"if it is Latin-1: iconv -f latin1 -t utf-8 {typed(path)} > utf8.toml",
        ) from error


def _section(name: str, values: Mapping[str, Any]) -> list[str]:
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    lines = ["", f"[{name}]"]
    lines += [f"{key} = {_value(value)}" for key, value in values.items() if key not in tables]
    for key, table in tables.items():
        lines += _section(f"{name}.{key}", table)
    return lines


def _value(value: Any) -> str:  # noqa: ANN401 - any TOML value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, str):
        # JSON's escapes are TOML's, of which TOML wants one more.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def _resolve_path(document: dict[str, Any], folder: Path) -> None:
    """Let `data.path` of a document that lies in `folder` be relative to this folder instead."""
    data = document.get("data")
    given = data.get("path") if isinstance(data, dict) else None
    if isinstance(given, str) and given:
        document["data"]["path"] = resolved(given, folder)


def _prefer_given_folder(document: dict[str, Any], assignments: Sequence[str]) -> None:
    """Forget the recipe's data.name where a folder is given and no name with it."""
    given = {assignment.partition("=")[0].strip() for assignment in assignments}
    data = document.get("data")
    if "data.path" in given and "data.name" not in given and isinstance(data, dict):
        data.pop("name", None)


def _assign(document: dict[str, Any], assignment: str) -> None:
    key, equals, text = assignment.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise UsageError(
            f"--set {assignment!r}; accepted: section.key=value", "--set optimiser.lr=0.001"
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # an unquoted word
    table = document
    for part in path[:-1]:
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            raise UsageError(f"--set {assignment!r}: {part} is a value, not a section")
        table = inner
    table[path[-1]] = value


def _explained(error: ValidationError, source: str) -> UsageError:
    first = error.errors()[0]
    path = [str(part) for part in first["loc"]]
    name = ".".join(path)
    if first["type"] == "extra_forbidden":
        known = _keys(path[:-1])
        near = get_close_matches(path[-1], known, n=2, cutoff=0.4)
        accepted = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
        return UsageError(f"{source}: unknown key {name}; {accepted}", _HINT)
    if first["type"] == "missing":
        return UsageError(f"{source}: {name} is missing", _HINT)
    message = first["msg"].removeprefix("Input should be ").replace("a valid tuple", "a list")
    if first["type"] == "model_type":
        message = f"a section, of which --set {name}.KEY=VALUE sets a key"
    given = first["input"]
    shown = _value(given) if isinstance(given, bool) else repr(given)
    return UsageError(f"{source}: {name} is {shown}; accepted: {message}", _HINT)


def _keys(path: Sequence[str]) -> list[str]:
    model: Any = Recipe
    for part in path:
        model = model.model_fields[part].annotation
    return list(getattr(model, "model_fields", {}))
