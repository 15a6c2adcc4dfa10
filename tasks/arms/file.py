"""The file of a comparison, `configs/arms/*.yaml`: what its arms share, and the keys in which they differ."""

import re
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Annotated

from pydantic import Field, JsonValue

from containers.arms.records import START
from containers.contracts.base import Frozen, GpuHours, Seed

Keys = dict[Annotated[str, Field(pattern=r"^\w+(\.\w+)*$")], JsonValue]
ArmName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]

_MOST_NAME_CHARACTERS = 63


class ArmSection(Frozen):
    """One arm, or one for each combination of its grid."""

    set: Keys = Field({}, description="Keys of this arm, as `--set` has them: `train_policy.algorithm: grpo`")
    grid: dict[Annotated[str, Field(pattern=r"^\w+(\.\w+)*$")], tuple[JsonValue, ...]] = Field(
        {}, description="Keys with several values each; the arm is run with each combination"
    )


class ArmsFile(Frozen):
    """A comparison of arms. Relative paths start at the current directory."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$", description="Names the output folder and the runs")
    start_from: Path = Field(description="The run that all arms start from: a file like configs/runs/demo.yaml")
    set: Keys = Field({}, description="Keys of all arms, as `--set` has them")
    seeds: tuple[Seed, ...] = Field(
        (0,), min_length=1, max_length=20, description="Seeds of the policy's training; each arm is trained with each"
    )
    max_gpu_hours: GpuHours | None = Field(
        None, description="GPUs × hours of all arms together; without a GPU the hours of the machine. null: no limit"
    )
    output_dir: Path | None = Field(None, description="Report and runs of the arms; null: outputs/<name>")
    store_dir: Path | None = Field(None, description="As run.store_dir, for all arms; null: `store` beside output_dir")
    arms: dict[ArmName, ArmSection | None] = Field(min_length=1, max_length=60, description="By name; null: as it is")

    @property
    def folder(self) -> Path:
        """Report and runs of the arms."""
        return self.output_dir or Path("outputs") / self.name

    @property
    def store(self) -> Path:
        """Artifacts of all arms."""
        return self.store_dir or self.folder.parent / "store"

    def settings_of_arms(self) -> Iterator[tuple[str, Mapping[str, JsonValue]]]:
        """Yield each arm with the keys that it sets; of a grid, one for each combination, in order."""
        for name, section in self.arms.items():
            own = section or ArmSection()
            for values in product(*own.grid.values()):
                combination = dict(zip(own.grid, values, strict=True))
                yield _grid_name(name, combination), {**own.set, **combination}

    def run_name(self, arm: str, seed: int) -> str:
        """Name of the run of that arm."""
        return f"{self.name}-{arm}" + (f"-seed-{seed}" if len(self.seeds) > 1 else "")

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield what several keys make wrong together: the key, and a sentence."""
        names = [name for name, _ in self.settings_of_arms()]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield "arms", f"two arms are named `{name}`, since the values of their grids are written alike."
        if START in names:
            yield f"arms.{START}", "is the name of the model that all arms start from. Choose another."
        if len(set(self.seeds)) < len(self.seeds):
            yield "seeds", "names a seed twice."
        if len(names) < 2 and len(self.seeds) < 2:
            yield "arms", "has one arm with one seed: there is nothing to compare. Add another."
        for name in names:
            if len(self.run_name(name, max(self.seeds))) > _MOST_NAME_CHARACTERS:
                yield f"arms.{name}", f"with `{self.name}` it makes a longer name than {_MOST_NAME_CHARACTERS} letters."


def _grid_name(name: str, combination: Mapping[str, JsonValue]) -> str:
    """`grpo` with train_policy.beta 0.02 is `grpo-beta-0-02`."""
    parts = (f"{key.rpartition('.')[2]}-{value}" for key, value in combination.items())
    return "-".join((name, *(re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") for part in parts)))
