"""Find the parts of a stage's program: imported sources, opened files, and versions of libraries.

A stage runs again if one of these changed, and for no other change of the sources. Imports are found in the text of
each file, at any place, and followed. So the list is the same on both sides of the container boundary, and no code is
executed. Modules that are imported by name are in a registry; they count if the configuration names them. At its end a
stage compares the list with the modules that it loaded (`unlisted`).

Run as a program, it prints the versions of the named libraries as JSON; an image's libraries are read so.
"""

import hashlib
import json
import platform
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path

from pydantic import Field

from containers.contracts.base import Frozen
from containers.contracts.configs.answer_sets import WITH_ANSWERS, AnswerSetsConfig
from containers.contracts.configs.compare_policies import ComparePoliciesConfig
from containers.contracts.configs.evaluate_policy import EvaluatePolicyConfig
from containers.contracts.configs.evaluate_reward_model import EvaluateRewardModelConfig
from containers.contracts.configs.evaluate_sets import EvaluateSetsConfig
from containers.contracts.configs.parts.judges import Judge
from containers.contracts.configs.parts.policy_algorithms import OBJECTIVES
from containers.contracts.configs.parts.rewards import RewardTerm
from containers.contracts.configs.parts.row_filters import RowFilters
from containers.contracts.configs.stages import StageConfig
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.digests import content_digest
from containers.contracts.manifest import FileEntry
from containers.contracts.names import StageName
from containers.contracts.registries import BENCHMARKS, JUDGES, REWARDS, ROLLOUT_ENGINES, STANDARD_SETS

PACKAGE = Path(__file__).resolve().parents[1]
_ENTRY = "containers.stages.entry"
# Folders that an image does not receive, or that only the orchestrator uses.
_LEFT_OUT = ("launch", "images", "compose")
# These change no result: their values are in the key, or they are texts for users.
NOT_COUNTED = frozenset(
    {
        "containers.contracts.configs.stages",
        "containers.contracts.configs.score_file",
        "containers.contracts.configs.parts.row_filters",
        "containers.contracts.configs.parts.training",
        "containers.contracts.configs.parts.policy_algorithms",
        "containers.contracts.registries",
        "containers.contracts.programs",
    }
)
# Draws pages, which no later stage reads; counts only for a stage whose result is a page.
_PAGES = frozenset({"containers.report", "containers.document"})
_DRAWS_PAGES = frozenset({"write_report"})
# Libraries that check values or draw.
_LIBRARIES_NOT_COUNTED = frozenset({"pydantic", "matplotlib", "markupsafe"})
# Libraries that these compute with, and that our sources do not always import themselves.
_BENEATH: Mapping[str, tuple[str, ...]] = {
    "transformers": ("tokenizers", "numpy"),
    "trl": ("accelerate", "datasets", "transformers"),
    "peft": ("accelerate",),
}
# Libraries that are imported by another name than they are installed by.
_DISTRIBUTIONS: Mapping[str, str] = {"sklearn": "scikit-learn"}
_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]*)|import[ \t]+([^\n#]+))", re.MULTILINE
)
_OPENS_FILES = b"resources.files("
_TORCH_BUILD = re.compile(r"^(cuda|hip)\s*(?::[^=]*)?=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)


class Program(Frozen):
    """The parts of a stage's program."""

    files: dict[str, str] = Field(description="Path below containers/ → sha256")
    libraries: dict[str, str] = Field(description="Library → version, with its build; `python` is one of them")
    image: str = Field("", description="Digest of an image whose libraries cannot be read; replaces their versions")

    @property
    def digest(self) -> str:
        """`sha256:…` over all parts."""
        text = json.dumps(self.model_dump(exclude_defaults=True), sort_keys=True)
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


@dataclass(frozen=True)
class _Source:
    sha256: str
    size_bytes: int
    imports: frozenset[str]
    opens_files: bool


class Sources:
    """The sources below `containers/`, all read at one moment.

    Args:
        package: the folder of `containers`; another one in tests.
    """

    def __init__(self, package: Path = PACKAGE) -> None:
        self._files = dict(_read(package))

    @cached_property
    def digest(self) -> str:
        """`sha256:…` over all sources that an image receives; image and orchestrator must have the same."""
        return content_digest(
            FileEntry(path=path, size_bytes=source.size_bytes, sha256=source.sha256)
            for path, source in self._files.items()
        )

    @property
    def libraries(self) -> frozenset[str]:
        """Every library that any source imports."""
        tops = {name.partition(".")[0] for source in self._files.values() for name in source.imports}
        return frozenset(top for top in tops if top != "containers" and top not in sys.stdlib_module_names)

    def files_of(
        self, stage: str, members: Iterable[str] = (), *, counted: bool = True
    ) -> tuple[dict[str, str], frozenset[str]]:
        """Path → sha256 of the files of the stage's program, and the libraries that it imports.

        Args:
            members: modules that its configuration names (`members_of`).
            counted: leave out files that change no result; else return all files that it may load.
        """
        not_counted = _not_counted(stage) if counted else frozenset[str]()
        found: dict[str, str] = {}
        libraries: set[str] = set()
        waiting = [_ENTRY, f"containers.stages.{stage}", *members]
        while waiting:
            module = waiting.pop()
            path = self._path_of(module)
            if path is None or path in found or _is_below(module, not_counted):
                continue
            source = self._files[path]
            found[path] = source.sha256
            if source.opens_files:
                found |= self._data_beside(path)
            waiting += [module.rpartition(".")[0]] if "." in module else []
            for name in source.imports:
                top = name.partition(".")[0]
                if top == "containers":
                    waiting += [name]
                elif top not in sys.stdlib_module_names:
                    libraries.add(top)
        return found, frozenset(libraries)

    def _path_of(self, module: str) -> str | None:
        """The module's file; None where the name is no module but an object in one."""
        below = "/".join(module.split(".")[1:])
        candidates = (f"{below}.py", f"{below}/__init__.py") if below else ("__init__.py",)
        return next((path for path in candidates if path in self._files), None)

    def _data_beside(self, path: str) -> dict[str, str]:
        folder = path.rpartition("/")[0]
        return {
            other: source.sha256
            for other, source in self._files.items()
            if other.startswith(f"{folder}/") and not other.endswith(".py")
        }


def _read(package: Path) -> Iterator[tuple[str, _Source]]:
    for pattern in ("*.py", "*.jinja"):
        for file in package.rglob(pattern):
            path = file.relative_to(package)
            if "__pycache__" in path.parts or path.parts[0] in _LEFT_OUT:
                continue
            text = file.read_bytes()
            imports = frozenset(_imports(text)) if pattern == "*.py" else frozenset[str]()
            sha256 = hashlib.sha256(text).hexdigest()
            yield path.as_posix(), _Source(sha256, len(text), imports, opens_files=_OPENS_FILES in text)


def _imports(text: bytes) -> Iterator[str]:
    """Yield every module that a source may import; `a.b` for `from a import b`, since `b` may be a module."""
    for module, names, plain in _IMPORT.findall(text):
        if plain:
            yield from (words[0] for part in plain.decode().split(",") if (words := part.split()))
            continue
        yield module.decode()
        without_comments = re.sub(rb"#[^\n]*", b"", names).strip(b"()").decode()
        yield from (f"{module.decode()}.{words[0]}" for part in without_comments.split(",") if (words := part.split()))


def _not_counted(stage: str) -> frozenset[str]:
    """Modules that change no result of the stage; also other stages' configurations, which shared code imports."""
    others = {f"containers.contracts.configs.{other}" for other in StageName if other != stage}
    return NOT_COUNTED | others if stage in _DRAWS_PAGES else NOT_COUNTED | others | _PAGES


def _is_below(module: str, names: Collection[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


def members_of(config: StageConfig) -> tuple[str, ...]:
    """The modules of registries that a configuration names; unknown names are skipped."""
    if isinstance(config, EvaluateRewardModelConfig):
        named = ("pairs", *(suite.benchmark for suite in config.suites))
    elif isinstance(config, RowFilters):
        named = tuple(suite.benchmark for suite in config.suites if config.contamination != "off")
    elif isinstance(config, TrainPolicyConfig):
        judges = () if config.evidence is None else config.evidence.judges
        return (
            OBJECTIVES.module_of(config.method.objective),
            *_rewards_and_judges(config.rewards, judges),
            ROLLOUT_ENGINES.module_of(config.rollout_engine),
        )
    elif isinstance(config, ComparePoliciesConfig):  # the rewards were computed before
        return _rewards_and_judges((), config.evaluation.judges)
    elif isinstance(config, AnswerSetsConfig):
        named = tuple(one.kind for one in config.sets)
    elif isinstance(config, EvaluateSetsConfig):
        kinds = tuple(STANDARD_SETS.module_of(one.kind) for one in config.sets)
        rules = tuple(REWARDS.module_of(one.kind) for one in config.sets if one.kind in WITH_ANSWERS)
        return tuple(dict.fromkeys((*kinds, *rules, *_rewards_and_judges((), config.judges))))
    elif isinstance(config, EvaluatePolicyConfig):
        return _rewards_and_judges(config.rewards, config.judges)
    else:
        return ()
    known = ((BENCHMARKS if name in BENCHMARKS else STANDARD_SETS, name) for name in dict.fromkeys(named))
    return tuple(registry.module_of(name) for registry, name in known if name in registry)


def _rewards_and_judges(rewards: Sequence[RewardTerm], judges: Sequence[Judge]) -> tuple[str, ...]:
    by_values = (judge.type for judge in judges if judge.type in REWARDS)
    terms = (REWARDS.module_of(name) for name in (*(term.type for term in rewards), *by_values))
    return tuple(dict.fromkeys((*terms, *(JUDGES.module_of(judge.type) for judge in judges))))


def counted_libraries(imported: Iterable[str]) -> tuple[str, ...]:
    """The libraries whose versions can change a result: the imported ones, and those that they compute with."""
    found, waiting = set[str](), list(imported)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _BENEATH.get(name, ())
    return tuple(sorted(found - _LIBRARIES_NOT_COUNTED))


def library_versions(names: Iterable[str]) -> dict[str, str]:
    """Library → installed version with its build, or `absent` if it is not installed; and `python`."""
    return {"python": ".".join(platform.python_version_tuple()[:2]), **{name: _version(name) for name in names}}


def _version(name: str) -> str:
    try:
        found = metadata.distribution(_DISTRIBUTIONS.get(name, name))
    except metadata.PackageNotFoundError:
        return "absent"
    if name != "torch":
        return found.version
    file = Path(str(found.locate_file("torch/version.py")))
    builds = _TORCH_BUILD.findall(file.read_text(encoding="utf-8")) if file.is_file() else []
    return " ".join((found.version, *(f"{kind} {version}" for kind, version in builds)))


def unlisted(listed: Collection[str]) -> tuple[str, ...]:
    """Sources below `containers/` that this process has loaded without a visible import; the key misses their changes.

    Args:
        listed: files that a program may load (`Sources.files_of`); empty: nothing is compared.
    """
    if not listed:
        return ()
    loaded = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    paths = {Path(file).resolve() for file in loaded if file}
    ours = {path.relative_to(PACKAGE).as_posix() for path in paths if path.is_relative_to(PACKAGE)}
    return tuple(sorted(ours - set(listed)))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(library_versions(sys.argv[1:])))
