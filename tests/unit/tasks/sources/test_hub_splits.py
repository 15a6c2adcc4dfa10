"""Subset and split must name the files that the datasets library reads for them: both stand on the hub's page."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
from fakes.helpsteer3_repository import helpsteer3_repository
from fakes.hub_server import FakeHub
from pydantic import ValidationError

from containers.contracts.configs.filter_dataset import FilterDatasetConfig
from containers.contracts.spec import StageInput
from containers.data.sources import read_source
from containers.harness.errors import BadDataError
from tasks.config.debug import debug_settings
from tasks.config.loading import load_run_config
from tasks.config.sources import DatasetSource, whole_filter_config
from tasks.plan.run_plan import draft_plan
from tasks.sources.errors import SourceError, SourceNotFoundError, UnusableSourceError
from tasks.sources.hub import HubFile, HubRevision
from tasks.sources.pinned import pinned_dataset_inputs
from tasks.sources.resolve import probe_dataset, resolve_dataset
from tasks.sources.row_samples import dataset_samples
from tasks.sources.splits import split_files

pytestmark = pytest.mark.stages


def rows(*names: str) -> bytes:
    return "".join(
        json.dumps({"prompt": name, "chosen": "Red.", "rejected": "Blue."}) + "\n" for name in names
    ).encode()


def card(configs: str) -> bytes:
    return f"---\nlicense: mit\nconfigs:\n{configs}---\n# Card\n".encode()


# As the cards of HelpSteer3, PKU-SafeRLHF and ultrafeedback_binarized list their files.
HELPSTEER3 = """
- config_name: preference
  default: true
  data_files:
  - {split: train, path: preference/train.jsonl}
  - {split: validation, path: preference/validation.jsonl}
- config_name: feedback
  data_files: [{split: train, path: feedback/train.jsonl}]
"""
PKU = """
- config_name: default
  data_files:
  - split: train
    path: ["data/Alpaca-7B/train.jsonl", "data/Alpaca2-7B/train.jsonl"]
  - split: test
    path: ["data/Alpaca-7B/test.jsonl"]
- config_name: alpaca-7b
  data_files:
  - {split: train, path: data/Alpaca-7B/train.jsonl}
"""
HELPSTEER3_FILES = ["preference/train.jsonl", "preference/validation.jsonl", "feedback/train.jsonl"]
SHARDS = ["data/train_prefs-00000-of-00002.jsonl", "data/train_prefs-00001-of-00002.jsonl",
          "data/test_prefs-00000-of-00001.jsonl"]  # fmt: skip
PKU_FILES = [f"data/{name}/{split}.jsonl" for name in ("Alpaca-7B", "Alpaca2-7B") for split in ("train", "test")]
LAYOUTS: dict[str, tuple[str, list[str], str | None, list[str]]] = {
    "listed": (HELPSTEER3, HELPSTEER3_FILES, None, ["train", "validation"]),
    "listed, another subset": (HELPSTEER3, HELPSTEER3_FILES, "feedback", ["train"]),
    "listed, several files": (PKU, PKU_FILES, None, ["train", "test"]),
    "listed, one of them": (PKU, PKU_FILES, "alpaca-7b", ["train"]),
    "listed patterns": ("- config_name: x\n  data_files:\n  - {split: train_prefs, path: data/train_prefs-*}\n"
                        "  - {split: test_prefs, path: 'data/test_prefs-*'}\n", SHARDS, None,
                        ["train_prefs", "test_prefs"]),
    "a pattern for train": ("- config_name: x\n  data_files: '*.jsonl'\n", ["a.jsonl", "b.jsonl", "c/d.jsonl"], None,
                            ["train"]),
    "patterns through folders": ("- config_name: x\n  data_files: '**/*.jsonl'\n", ["a.jsonl", "c/d.jsonl"], None,
                                 ["train"]),
    "a folder of data": ("- config_name: x\n  data_dir: sub\n", ["sub/train.jsonl", "sub/dev.jsonl", "train.jsonl"],
                         None, ["train", "validation"]),
    "names of shards": ("", SHARDS, None, ["train_prefs", "test_prefs"]),
    "names of files": ("", ["my_train_set.jsonl", "x-val.jsonl", "evaluation.jsonl"], None,
                       ["train", "validation", "test"]),
    "names of folders": ("", ["training/a.jsonl", "training/b.jsonl", "test/c.jsonl"], None, ["train", "test"]),
    "no telling names": ("", ["rows.jsonl", "more/rows.jsonl"], None, ["train"]),
    "words within words": ("", ["trainer.jsonl", "contest.jsonl"], None, ["train"]),
}  # fmt: skip


def revision_of(folder: Path) -> HubRevision:
    paths = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return HubRevision("dataset", "org/rows", "c" * 40, tuple(HubFile(path, 1) for path in paths))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_split_has_the_rows_that_the_datasets_library_loads(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs, files, subset, splits = LAYOUTS[layout]
    root = tmp_path / "repository"
    for path in (*files, ".hidden/train.jsonl", "__pycache__/train.jsonl"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(rows(path))
    (root / "README.md").write_bytes(card(configs) if configs else b"# Nothing\n")
    loaded = datasets.load_dataset(str(root), subset, cache_dir=str(tmp_path / "cache"))
    assert sorted(loaded) == sorted(splits)
    for split in splits:
        found = split_files(
            revision_of(root),
            subset=subset,
            split=split,
            key="dataset.split",
            read=lambda name: (root / name).read_text(),
        )
        assert sorted(found) == sorted(loaded[split]["prompt"])


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with FakeHub() as fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
        monkeypatch.delenv("HF_HUB_CACHE", raising=False)
        monkeypatch.chdir(tmp_path)
        yield fake


def source(**keys: Any) -> DatasetSource:
    return DatasetSource.model_validate({"hub_id": "org/rows", "revision": "main", **keys})


def prompts(dataset: DatasetSource) -> dict[str, list[str]]:
    """The prompts that the stage reads, by input."""
    config = whole_filter_config(FilterDatasetConfig(), dataset, ())
    found: dict[str, list[str]] = {}
    for item in resolve_dataset(dataset, token=None):
        given = StageInput(name=item.name, path=str(item.path), digest=item.digest, origin=item.origin)
        split = "train" if item.name.startswith("train") else "validation"
        read = read_source(given, split=split, reading=config.reading)
        found[item.name] = [row.row.pair.prompt[0]["content"] for row in read.rows]
    return found


def test_subset_and_slices_are_fetched_and_read_without_a_files_name(hub: FakeHub) -> None:
    files = {path: rows(*(f"{path} {number}" for number in range(10))) for path in HELPSTEER3_FILES}
    commit = hub.commit("datasets", "org/rows", files | {"README.md": card(HELPSTEER3)})
    dataset = source(subset="preference", split="train[:30%]", validation_split="validation[-2:]")
    read = prompts(dataset)
    assert read["train_data"] == [f"preference/train.jsonl {number}" for number in range(3)]
    assert read["validation_data"] == [f"preference/validation.jsonl {number}" for number in (8, 9)]
    assert "feedback/train.jsonl" not in hub.downloads()
    found = resolve_dataset(dataset, token=None)
    assert [item.digest for item in found] == [
        f"hub:{commit}:subset preference, split train",
        f"hub:{commit}:subset preference, split validation",
    ]
    assert found[0].origin == f"org/rows@{commit} subset preference, split train"
    pinned = pinned_dataset_inputs(dataset.model_copy(update={"revision": commit}))
    assert [(item.name, item.digest) for item in pinned] == [(item.name, item.digest) for item in found]


def test_a_slice_goes_over_several_files_in_their_order_and_blank_lines_are_no_rows(hub: FakeHub) -> None:
    first, second = rows("a", "b", "c"), rows("d", "e")
    hub.commit("datasets", "org/rows", {SHARDS[0]: first.replace(b"\n", b"\n\n"), SHARDS[1]: second})
    for text, wanted in (
        ("train_prefs[1:4]", ["b", "c", "d"]),
        ("train_prefs[-1:]", ["e"]),
        ("train_prefs[:60%]", ["a", "b", "c"]),
        ("train_prefs", ["a", "b", "c", "d", "e"]),
    ):
        assert prompts(source(split=text)) == {"train_data": wanted}
    with pytest.raises(BadDataError, match=r"has 5 rows, and none is in the slice \[7:9\]"):
        prompts(source(split="train_prefs[7:9]"))


def test_slices_of_one_split_have_keys_of_their_own() -> None:
    whole, part, same = (
        whole_filter_config(FilterDatasetConfig(), source(split=text), ())
        for text in ("train", "train[:10%]", "train[:10%]")
    )
    assert whole != part and part == same


def test_columns_of_other_names_are_looked_for_in_what_was_fetched(hub: FakeHub) -> None:
    hub.commit("datasets", "org/rows", {"train.jsonl": b'{"q": "a", "chosen": "Red.", "completion": "Blue."}\n'})
    columns = {"prompt": "q", "rejected": "completion"}
    assert prompts(source(split="train", columns=columns)) == {"train_data": ["a"]}
    assert "TRL preference" in probe_dataset(source(split="train", columns=columns), token=None).found
    for look in (resolve_dataset, probe_dataset):  # the second finds it fetched
        with pytest.raises(UnusableSourceError, match="Columns found: q, chosen, completion"):
            look(source(split="train", columns={**columns, "prompt": "question"}), token=None)


def test_a_mixture_takes_splits_too(hub: FakeHub) -> None:
    hub.commit("datasets", "org/rows", {"train.jsonl": rows("a"), "test.jsonl": rows("b")})
    parts = [{"name": name, "hub_id": "org/rows", "revision": "main", "split": name} for name in ("train", "test")]
    dataset = DatasetSource.model_validate({"mixture": parts})
    assert [(item.name, item.path.name) for item in resolve_dataset(dataset, token=None)] == [
        ("train_data_train", "train.jsonl"),
        ("train_data_test", "test.jsonl"),
    ]
    assert dataset.holds_out_by_prompt


def test_the_check_tells_the_files_before_and_shows_a_row_after_they_are_fetched(hub: FakeHub) -> None:
    commit = hub.commit("datasets", "org/rows", helpsteer3_repository())
    dataset = source(subset="preference", split="train", validation_split="validation")
    before = probe_dataset(dataset, token=None)
    assert before.missing_bytes and "subset preference, split train (1 file, " in before.found
    (first, second) = dataset_samples(dataset, token=None)
    assert first == "dataset.split: not fetched yet, so no row is shown here." and "validation_split" in second
    resolve_dataset(dataset, token=None)
    assert "HelpSteer3, " in probe_dataset(dataset, token=None).found
    hub.stop()
    texts = list(dataset_samples(dataset.model_copy(update={"revision": commit}), token=None))
    assert len(texts) == 2 and all("read as HelpSteer3" in text for text in texts)


@pytest.mark.parametrize(
    ("configs", "keys", "said"),
    [
        (HELPSTEER3, {"subset": "preferences", "split": "train"},
         "has no subset `preferences`. Did you mean `preference`? Its subsets: `preference`, `feedback`."),
        (HELPSTEER3, {"split": "test"}, "has no split `test`. Its splits: `train`, `validation`."),
        (HELPSTEER3, {"split": "validaton"}, "has no split `validaton`. Did you mean `validation`?"),
        (HELPSTEER3.replace("  default: true\n", ""), {"split": "train"},
         "has the subsets `preference`, `feedback`, and none is the default. Name one as `subset`."),
        ("", {"subset": "pref", "split": "train"}, "Its subsets: `feedback`, `preference`."),
        ("", {"split": "test"}, "has no split `test`. Its splits: `train`, `validation`."),
        ("- config_name: x\n  data_files: [{split: train, path: images.tar}]\n", {"split": "train"},
         "has no data file in the split `train`, but images.tar."),
        ("- config_name: x\n  data_files: [{split: train, path: gone/*}]\n", {"split": "train"}, "no file at all"),
        ("- config_name: x\n  data_files: [7, null]\n", {"split": "train"}, "no file at all"),
        ("- [7]\n- x\n", {"split": "train"}, ""),
        ("- {a: b\n", {"split": "train"}, ""),
    ],
)  # fmt: skip
def test_an_unknown_name_is_refused_with_those_that_exist(
    hub: FakeHub, configs: str, keys: dict[str, str], said: str
) -> None:
    files = {path: rows(path) for path in HELPSTEER3_FILES} | {"images.tar": b"x"}
    hub.commit("datasets", "org/rows", files | {"README.md": card(configs) if configs else b"# x\n"})
    if not said:  # a card that cannot be read tells nothing, and the names of the files count
        assert resolve_dataset(source(**keys), token=None)
        return
    for look in (probe_dataset, resolve_dataset):
        with pytest.raises((SourceNotFoundError, UnusableSourceError)) as caught:
            look(source(**keys), token=None)
        assert said in str(caught.value) and str(caught.value).startswith("dataset.split: org/rows@")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"hub_id": None, "revision": None, "split": "train"}, "split belongs to a hub_id"),
        ({"split": "train", "train": "a.jsonl"}, "both train and split are given"),
        ({"split": "train", "validation": "a", "validation_split": "b"}, "both validation and validation_split"),
        ({"train": "a.jsonl", "subset": "x"}, "subset is given without a split"),
        ({"split": "train[10:5]"}, "holds no row"),
        ({"split": "train[:10%]", "reader": "mine.py"}, "cannot be taken from what a reader yields"),
        ({}, "train"),
        ({"mixture": [{"name": "a", "train": "x"}], "hub_id": None, "revision": None, "split": "train"}, "split"),
        ({"mixture": [{"name": "a", "hub_id": "a/b", "revision": "main"}], "hub_id": None, "revision": None}, "train"),
    ],
)
def test_what_contradicts_is_refused_without_the_hub(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        source(**keys)
    assert said in str(caught.value)


def test_a_readme_that_cannot_be_fetched_is_no_empty_one(hub: FakeHub) -> None:
    commit = hub.commit("datasets", "org/rows", {"train.jsonl": rows("a"), "README.md": card(HELPSTEER3)})
    files = {"train.jsonl": gzip.compress(rows("a"))}
    hub.commit("datasets", "org/other", files)
    hub.status = 500
    with pytest.raises(SourceError):
        resolve_dataset(source(revision=commit, split="train"), token=None)


def test_a_debug_run_holds_out_of_the_split_too(tmp_path: Path) -> None:
    for keys in ("split: 'train[:50%]', validation_split: test", "train: a.jsonl, validation_split: test"):
        path = tmp_path / "run.yaml"
        path.write_text(
            f"run: {{name: t, output_dir: {tmp_path}/out}}\ngpu_profile: cpu\nbuild_base_model: {{}}\n"
            f"dataset: {{hub_id: a/b, revision: main, subset: x, {keys}}}\n"
        )
        plain = load_run_config(path).config
        loaded = load_run_config(path, overrides=debug_settings(plain))
        assert loaded.config.dataset.holds_out_by_prompt
        assert draft_plan(loaded.config).dataset == "a/b: rows are known once it is downloaded"
