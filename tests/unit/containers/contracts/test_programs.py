"""A stage is made again only where its own program changed; what it loads and is not in the list is found."""

import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from containers.contracts.configs.evaluate_reward_model import EvaluateRewardModelConfig, SuiteFile
from containers.contracts.configs.filter_dataset import FilterDatasetConfig
from containers.contracts.configs.parts.policy_algorithms import OBJECTIVES
from containers.contracts.configs.parts.row_filters import HeldOutSuite
from containers.contracts.configs.stages import StageConfig
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.configs.write_report import WriteReportConfig
from containers.contracts.names import CONTAINER_STAGES
from containers.contracts.programs import (
    PACKAGE,
    Program,
    Sources,
    counted_libraries,
    library_versions,
    members_of,
    unlisted,
)
from containers.contracts.registries import BENCHMARKS, REWARDS, ROLLOUT_ENGINES, RUNTIMES, Registry

CERTIFICATE = EvaluateRewardModelConfig(suites=(SuiteFile(name="a", benchmark="llmbar", path="x"),))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of `containers`, to be changed."""
    return Path(shutil.copytree(PACKAGE, tmp_path / "containers", ignore=shutil.ignore_patterns("__pycache__")))


@pytest.fixture(scope="module")
def untouched() -> dict[str, str]:
    """The digest of each stage's program."""
    return digests(Sources(PACKAGE))


def program(config: StageConfig, sources: Sources) -> Program:
    files, libraries = sources.files_of(config.stage, members_of(config))
    return Program(files=files, libraries=library_versions(counted_libraries(libraries)))


def digests(sources: Sources) -> dict[str, str]:
    return {config.stage: program(config, sources).digest for config in CONFIGS}


def touch(package: Path, file: str) -> None:
    path = package / file
    path.write_text(path.read_text(encoding="utf-8") + "\n# changed\n", encoding="utf-8")


CONFIGS: tuple[StageConfig, ...] = (
    FilterDatasetConfig(),
    TrainSftConfig(),
    TrainRewardModelConfig(),
    CERTIFICATE,
    TrainPolicyConfig(),
    WriteReportConfig(),
)


@pytest.mark.parametrize(
    ("file", "made_again"),
    [
        ("document/templates/style.css.jinja", {"write_report"}),
        ("report/certificate_page.py", {"write_report"}),
        ("evals/suites/llmbar.py", {"evaluate_reward_model"}),
        ("evals/suites/arena.py", set()),  # which no configuration here names
        ("contracts/registries.py", set()),  # where a new reward, suite or engine gets its line
        ("contracts/configs/train_sft.py", {"train_sft"}),
        ("contracts/configs/train_policy.py", {"train_policy"}),
        ("algorithms/policy_step.py", {"train_policy"}),
        ("losses/clipped.py", {"train_policy"}),
        ("algorithms/offline_step.py", {"train_sft"}),
        ("algorithms/completion_packing.py", {"train_policy", "train_sft"}),
        ("losses/preferences.py", set()),  # which fine-tuning does not use
        ("losses/__init__.py", {"train_policy", "train_sft"}),  # a module's packages are imported before it
        ("losses/capped.py", set()),  # which rloo does not use
        ("losses/soft.py", set()),
        ("contracts/configs/parts/policy_algorithms.py", set()),  # its values are in the keys
        ("rollouts/vllm.py", set()),
        ("stages/train_sft.py", {"train_sft"}),
        ("launch/base.py", set()),
    ],
)
def test_a_changed_file_changes_the_stages_that_read_it(
    package: Path, untouched: dict[str, str], file: str, made_again: set[str]
) -> None:
    touch(package, file)
    changed = {stage for stage, digest in digests(Sources(package)).items() if digest != untouched[stage]}
    assert changed == made_again


def test_what_the_configuration_names_counts() -> None:
    sources = Sources()
    other = CERTIFICATE.model_copy(update={"suites": (SuiteFile(name="a", benchmark="arena", path="x"),)})
    assert {"evals/suites/arena.py", "evals/suites/pairs.py"} <= program(other, sources).files.keys()
    assert "evals/suites/llmbar.py" not in program(other, sources).files
    batched = TrainPolicyConfig(rollout_engine="continuous_batching")
    assert "rollouts/continuous_batching.py" in program(batched, sources).files
    suite = HeldOutSuite(name="a", benchmark="rm_bench")
    assert "evals/suites/rm_bench.py" in program(FilterDatasetConfig(suites=(suite,)), sources).files
    without = FilterDatasetConfig(suites=(suite,), contamination="off")
    assert "evals/suites/rm_bench.py" not in program(without, sources).files


def test_a_library_of_another_version_is_another_program() -> None:
    now = program(TrainPolicyConfig(), Sources())
    assert {"torch", "transformers", "trl", "tokenizers", "python"} <= now.libraries.keys()
    assert "pydantic" not in now.libraries
    newer = now.model_copy(update={"libraries": now.libraries | {"trl": "999"}})
    assert newer.digest != now.digest
    assert Program.model_validate_json(now.model_dump_json()).digest == now.digest


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (item.name for item in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, "relative"
            yield node.module
            yield from (f"{node.module}.{item.name}" for item in node.names)


def test_every_import_of_every_source_is_seen() -> None:
    files = Sources()._files
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        if name in files:
            missed = set(imported(ast.parse(path.read_bytes()))) - files[name].imports
            assert missed == set(), name


def test_data_files_are_opened_as_resources_only_and_each_belongs_to_a_stage() -> None:
    sources = Sources()
    names = {name for stage in CONTAINER_STAGES for name in sources.files_of(stage)[0]}
    assert {name for name in sources._files if not name.endswith(".py")} <= names
    this = ("contracts/programs.py",)
    by_path = [
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if "__file__" in path.read_text(encoding="utf-8") and path.relative_to(PACKAGE).parts[0] != "launch"
    ]
    assert [name for name in by_path if name not in this] == []


@pytest.mark.parametrize(
    "registry",
    [BENCHMARKS, ROLLOUT_ENGINES, OBJECTIVES, REWARDS, RUNTIMES],
    ids=["benchmarks", "engines", "objectives", "rewards", "runtimes"],
)
def test_every_name_of_a_registry_leads_to_a_module_of_the_package(registry: Registry) -> None:
    for name in registry:
        path = PACKAGE.parent / (registry.module_of(name).replace(".", "/") + ".py")
        assert path.is_file(), name
        attribute = registry._members[name].partition(":")[2]
        assert attribute in path.read_text(encoding="utf-8"), name


def test_naming_a_member_imports_nothing_until_it_is_used() -> None:
    registry = Registry({"absent": "containers.no_such_module:NAME"})
    assert "absent" in registry and "other" not in registry
    with pytest.raises(ModuleNotFoundError):
        registry["absent"]


def test_what_a_program_may_load_is_more_than_what_counts() -> None:
    counted, _ = Sources().files_of("evaluate_reward_model", members_of(CERTIFICATE))
    everything, _ = Sources().files_of("evaluate_reward_model", members_of(CERTIFICATE), counted=False)
    assert counted.keys() < everything.keys()
    assert {"report/certificate_page.py", "contracts/configs/stages.py"} <= everything.keys() - counted.keys()


def test_a_loaded_source_that_no_list_names_is_found() -> None:
    import containers.evals.statistics  # noqa: F401 - to be loaded

    assert unlisted(()) == ()
    everything = [path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")]
    assert unlisted(everything) == ()
    missing = unlisted([name for name in everything if name != "evals/statistics.py"])
    assert missing == ("evals/statistics.py",)


def test_an_image_is_asked_with_a_program_that_prints_versions_alone() -> None:
    command = [sys.executable, "-m", "containers.contracts.programs", "torch", "no_such_library"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert json.loads(done.stdout) == library_versions(["torch", "no_such_library"])
    assert library_versions(["no_such_library"])["no_such_library"] == "absent"


def test_a_version_of_torch_names_its_build_and_no_other_version_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two builds of one torch give other numbers; each library here is one that an import would find first."""
    for name in ("torch", "accelerate", "xgboost"):
        metadata = tmp_path / f"{name}-2.0.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.0\n", encoding="utf-8")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text(
        "__version__ = '2.0'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = library_versions(["torch", "accelerate", "xgboost"])
    assert (found["torch"], found["accelerate"], found["xgboost"]) == ("2.0 cuda 12.8", "2.0", "2.0")


def test_the_libraries_of_the_sources_are_those_that_pip_installs() -> None:
    """The launcher reads the version of each in an image; `json` or `containers` would be absent there forever."""
    found = Sources().libraries
    assert {"accelerate", "numpy", "torch", "transformers", "trl"} <= found
    assert not found & {"containers", "json", "os", "typing"}
