"""Weights that are cut off, misnamed or pickled are named by the check, not by a stage hours later."""

import json
import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tasks.config.sources import ModelSource
from tasks.pipeline.reward_models import probe_reward_model
from tasks.sources.errors import UnusableSourceError
from tasks.sources.model_files import require_whole_weights
from tasks.sources.resolve import probe_model
from tests.unit.factories.weight_bytes import weight_bytes

pytestmark = pytest.mark.stages

NAME = "model.safetensors"


def refusal(path: Path) -> str:
    with pytest.raises(UnusableSourceError) as caught:
        require_whole_weights(path.parent, [path.name])
    assert str(path) in caught.value.problem and caught.value.advice
    return caught.value.problem


def test_what_the_library_writes_is_whole_in_every_type(tmp_path: Path) -> None:
    types = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool, torch.float8_e4m3fn)
    tensors = {str(kind): torch.zeros(3, 5).to(kind) for kind in types}
    save_file({**tensors, "empty": torch.zeros(0, 4), "number": torch.tensor(1.0)}, tmp_path / NAME, {"format": "pt"})
    require_whole_weights(tmp_path, [NAME])


@pytest.mark.parametrize("num_lost", [1, 100, 19_200])
def test_weights_that_are_cut_off_are_named_with_both_sizes(tmp_path: Path, num_lost: int) -> None:
    path = tmp_path / NAME
    save_file({f"layer.{number}": torch.zeros(4, 4) for number in range(300)}, path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-num_lost])
    assert f"is cut off: it has {len(whole) - num_lost:,} bytes, its header needs {len(whole):,}." in refusal(path)


def forged(entry: dict[str, object]) -> bytes:
    header = json.dumps({"w": entry}).encode()
    return len(header).to_bytes(8, "little") + header + b"abc"


def pickled() -> bytes:
    return pickle.dumps({"w": [1.0]}, protocol=4)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (pickled(), "is a pickle under the name of a safetensors file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n", "is a pointer of Git LFS"),
        (b"weights" * 100, "does not begin with a length"),
        (b"\x08", "does not begin with a length"),
        ((9).to_bytes(8, "little") + b"[1, 2, 3]", "its header is no JSON object"),
        ((4).to_bytes(8, "little") + b"{]]]", "is a damaged safetensors file: "),
        (weight_bytes(b"abc") + b"more", "it has 75 bytes, its header 71"),
        (weight_bytes(b"abc").replace(b'"U8"', b'"I8"').replace(b"[3]", b"[9]"), "type and shape need 9"),
        (weight_bytes(b"abc").replace(b"[0, 3]", b"[1, 4]"), "is at 1 to 4, but the one before ends at 0"),
        (forged({"dtype": "U8", "shape": [10**12] * 3, "data_offsets": [0, 3]}), "more elements than possible"),
        (forged({"dtype": "U8", "shape": [3], "data_offsets": [0, 10**15]}), "type and shape need 3"),
        (forged({"dtype": "F4", "shape": [3], "data_offsets": [0]}), "is a damaged safetensors file"),
    ],
    ids=lambda item: item[:30] if isinstance(item, str) else "",
)
def test_what_is_no_safetensors_file_is_named_for_what_it_is(tmp_path: Path, data: bytes, problem: str) -> None:
    (tmp_path / NAME).write_bytes(data)
    assert problem in refusal(tmp_path / NAME)


def test_weights_of_torch_under_the_name_of_safetensors_are_called_pickle(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(2)}, tmp_path / NAME)
    assert zipfile.is_zipfile(tmp_path / NAME)
    assert "is a pickle under the name of a safetensors file" in refusal(tmp_path / NAME)


def test_a_shard_that_is_another_ones_copy_is_named(tmp_path: Path) -> None:
    for name, tensor in (("a.safetensors", "x"), ("b.safetensors", "x")):
        (tmp_path / name).write_bytes(weight_bytes(b"abc", name=tensor))
    places = {"x": "a.safetensors", "y": "b.safetensors"}
    (tmp_path / "index.json").write_text(json.dumps({"weight_map": places}))
    with pytest.raises(UnusableSourceError, match=r"b\.safetensors does not hold y, which index\.json looks for"):
        require_whole_weights(tmp_path, ["a.safetensors", "b.safetensors"], index="index.json")
    (tmp_path / "b.safetensors").write_bytes(weight_bytes(b"abc", name="y"))
    require_whole_weights(tmp_path, ["a.safetensors", "b.safetensors"], index="index.json")


def test_the_check_refuses_a_model_and_an_adapter_whose_weights_are_cut_off(tmp_path: Path) -> None:
    model = {"config.json": b"{}", NAME: weight_bytes(b"abc"), "tokenizer.json": b"{}", "chat_template.jinja": b"x"}
    settings = {"peft_type": "LORA", "base_model_name_or_path": str(tmp_path / "base")}
    adapter = {"adapter_config.json": json.dumps(settings).encode(), "adapter_model.safetensors": weight_bytes(b"low")}
    for folder, files in (("base", model), ("adapter", adapter)):
        (tmp_path / folder).mkdir()
        for name, data in files.items():
            (tmp_path / folder / name).write_bytes(data)
    source = ModelSource(path=str(tmp_path / "base"))
    probe_model(source, token=None)
    (tmp_path / "adapter" / "adapter_model.safetensors").write_bytes(weight_bytes(b"low")[:-1])
    with pytest.raises(UnusableSourceError, match=r"adapter_model\.safetensors is cut off"):
        probe_reward_model(ModelSource(path=str(tmp_path / "adapter")), token=None)
    (tmp_path / "base" / NAME).write_bytes(weight_bytes(b"abc")[:-1])
    with pytest.raises(UnusableSourceError, match=r"model\.safetensors is cut off"):
        probe_model(source, token=None)
