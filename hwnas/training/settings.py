"""What the parts of a recipe have in common."""

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError


class Settings(BaseModel):
    """A part of a recipe: frozen, without unknown keys, booleans only where they belong."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _booleans_are_no_numbers(cls, value: Any, info: ValidationInfo) -> Any:  # noqa: ANN401
        annotation = cls.model_fields[str(info.field_name)].annotation
        if annotation is bool:
            if not isinstance(value, bool):
                raise PydanticCustomError("boolean", "true or false")
        elif _takes_numbers(annotation):
            several = isinstance(value, list | tuple)
            if any(isinstance(one, bool) for one in (value if several else [value])):
                raise PydanticCustomError("number", "numbers" if several else "a number")
        return value


def _takes_numbers(annotation: Any) -> bool:  # noqa: ANN401 - a type, or a value of a Literal
    return (
        annotation in (int, float)
        or type(annotation) in (int, float)
        or any(map(_takes_numbers, get_args(annotation)))
    )
