"""What would fail deep inside a container is said before one is made."""

import os
from pathlib import Path

import pytest

from containers.contracts.names import OUTCOME_FILE
from containers.launch.base import InputUnusableError
from containers.launch.folders import check_inputs, prepare_folders, stage_user
from tests.unit.factories.launch_factory import make_input, make_launch, make_spec

STRANGER = 54321


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir(mode=0o755)
    (folder / "config.json").write_text("{}")
    (folder / "config.json").chmod(0o644)
    return folder


def check(path: Path) -> None:
    check_inputs((make_input("start_model", path),), uid=STRANGER, gid=STRANGER)


def test_a_readable_folder_or_file_passes(model: Path) -> None:
    check(model)
    check(model / "config.json")


def test_a_link_inside_the_folder_passes_and_a_link_out_of_it_is_refused(tmp_path: Path, model: Path) -> None:
    (model / "same.json").symlink_to("config.json")
    check(model)
    (tmp_path / "blob").write_text("weights")
    (model / "model.safetensors").symlink_to("../blob")
    with pytest.raises(InputUnusableError, match=r"model\.safetensors is a link to .*local_dir"):
        check(model)


def test_an_input_that_is_itself_a_link_is_mounted_by_its_target(tmp_path: Path, model: Path) -> None:
    (tmp_path / "latest").symlink_to(model)
    check(tmp_path / "latest")


def test_a_file_that_the_stages_user_may_not_read_is_named_with_the_remedy(model: Path) -> None:
    (model / "config.json").chmod(0o600)
    with pytest.raises(InputUnusableError, match=rf"config\.json is not readable by user {STRANGER}.*chmod -R a\+rX"):
        check(model)
    status = (model / "config.json").stat()
    check_inputs((make_input("start_model", model),), uid=status.st_uid, gid=status.st_gid)


def test_the_list_of_problems_is_short(model: Path) -> None:
    for number in range(100):
        (model / f"{number}").symlink_to("/elsewhere")
    with pytest.raises(InputUnusableError) as caught:
        check(model)
    assert str(caught.value).count("\n") <= 5


def test_the_stage_is_never_root_and_owns_its_work_folder(tmp_path: Path) -> None:
    launch = make_launch(tmp_path, make_spec())
    user = stage_user(launch)
    (launch.work_folder / "checkpoints").mkdir()
    (launch.work_folder / OUTCOME_FILE).write_text("stale")
    spec_file = prepare_folders(launch, launch.spec, user=user)
    assert user[0] != 0
    assert launch.work_folder.stat().st_uid == (launch.work_folder / "checkpoints").stat().st_uid == user[0]
    assert launch.spec_folder.stat().st_uid == os.geteuid(), "the stage cannot change what it was told"
    assert spec_file.stat().st_mode & 0o777 == 0o644
    assert not (launch.work_folder / OUTCOME_FILE).exists()


def test_handing_over_follows_no_link(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root changes owners")
    secret = tmp_path / "secret"
    secret.write_text("host")
    launch = make_launch(tmp_path, make_spec())
    user = stage_user(launch)
    (launch.work_folder / "link").symlink_to(secret)
    prepare_folders(launch, launch.spec, user=user)
    assert secret.stat().st_uid == 0
