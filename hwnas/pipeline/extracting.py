"""Cutting a subnet out of a run's supernet: `RUN/subnets/<first 12 digits of its digest>/`.

The folder appears whole or not at all. It holds `arch.json` and `weights.safetensors`, from which
the network is rebuilt, `card.json`, and `config.toml`, the recipe that its data are read by.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hwnas.errors import HwnasError, UsageError
from hwnas.io import digest_file, write_folder_atomic
from hwnas.pipeline.config import read_recipe
from hwnas.pipeline.replacing import check_replaceable
from hwnas.pipeline.rundir import Run, latest_step, load_supernet, supernet_file
from hwnas.pipeline.sealing import (
    CONFIG_FILE,
    Evidence,
    Origin,
    Subnet,
    check_fits,
    evidence_digest,
    seal,
)
from hwnas.pipeline.selecting import SUBNETS_FOLDER, Selection, select
from hwnas.supernet.card import CARD_FILE, Card, read_card, write_card
from hwnas.supernet.subnet import ARCH_FILE, WEIGHTS_FILE
from hwnas.training.data import load_data

if TYPE_CHECKING:
    from hwnas.pipeline.config import Recipe

__all__ = ["Selection", "Subnet", "extract", "select"]


def extract(
    run: Run, selection: Selection, *, recipe: str | None = None, out: Path | str | None = None
) -> Subnet:
    """Return the subnet's folder, written now unless it is there already.

    `recipe`: a name or TOML file that says what data to calibrate and measure on, for runs that
    have none; without it the batch norms keep the supernet's statistics. `out`: another folder.
    """
    arch = selection.arch
    folder = Path(out or run.folder / SUBNETS_FOLDER / arch.digest[:12])
    step = latest_step(run)  # once: a run that is trained now gets newer ones
    supernet = {
        "step": step,
        "sha256": digest_file(supernet_file(run, step=step)),
        "origin": dict(run.origin),
    }
    settings = _recipe(run, recipe)
    known = _known_card(folder)
    if known is not None and _says(known, arch.digest, supernet, settings):
        card = _promising(folder, known, selection)
        return Subnet(folder=folder, card=card, is_new=False)
    if known is not None and known.training is not None:
        raise UsageError(
            f"{folder}: holds a subnet that was trained after it was cut out",
            "choose another --out",
        )
    check_replaceable(folder, "subnet", _files_of)
    shared = load_supernet(run, step=step)
    evidence = None
    if settings is not None:
        from hwnas.pipeline.training_run import device_of

        data, device = load_data(settings.data), device_of(settings)
        check_fits(shared, data)
        shared = shared.to(device)
        evidence = Evidence(data=data, recipe=settings, device=device)
    origin = Origin(supernet=supernet, promised=selection.promised)
    cards: list[Card] = []
    write_folder_atomic(
        folder,
        lambda place: cards.append(seal(place, shared, arch, evidence=evidence, origin=origin)),
    )
    return Subnet(folder=folder, card=cards[0])


def _recipe(run: Run, recipe: str | None) -> "Recipe | None":
    own = run.folder / CONFIG_FILE
    if recipe is not None:
        return read_recipe(recipe)
    return read_recipe(str(own)) if own.is_file() else None


def _known_card(folder: Path) -> Card | None:
    """Return the card of an intact subnet, None if there is none or something was changed."""
    try:
        return read_card(folder)
    except HwnasError:
        return None


def _says(
    card: Card,
    digest: str,
    supernet: dict[str, object],
    recipe: "Recipe | None",
) -> bool:
    """Return whether a card speaks of the network that extracting now would write."""
    evidence = None if recipe is None else evidence_digest(recipe)
    return (
        card.digest == digest
        and card.training is None
        and dict(card.supernet) == supernet
        and (card.data or {}).get("recipe") == evidence
    )


def _promising(folder: Path, card: Card, selection: Selection) -> Card:
    """Return the card with what the search promises now, which needs no new network."""
    if selection.promised is None or selection.promised == card.promised:
        return card
    card = replace(card, promised=selection.promised)
    write_card(folder, card)
    return card


def _files_of(folder: Path) -> set[Path]:
    """Return the files that a subnet consists of, which may be damaged."""
    if not (folder / ARCH_FILE).is_file():
        raise UsageError(f"it has no {ARCH_FILE}")
    return {folder / name for name in (ARCH_FILE, WEIGHTS_FILE, CARD_FILE, CONFIG_FILE)}
