"""The recipes that come with hwnas, by name. Light: shells ask for the names at every Tab."""

from importlib import resources

from hwnas.errors import unknown_name


def recipe_names() -> list[str]:
    """Return the names of the shipped recipes."""
    folder = resources.files("hwnas.pipeline") / "recipes"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir()
                  if file.name.endswith(".toml"))  # fmt: skip


def recipe_text(name: str) -> str:
    """Return the text of a shipped recipe."""
    if name not in recipe_names():
        raise unknown_name("recipe", name, recipe_names(), hint="or give a path ending in .toml")
    return (resources.files("hwnas.pipeline") / "recipes" / f"{name}.toml").read_text()
