"""Where vLLM's processes start: a runtime image has no compiler of CUDA, and vLLM decides its own memory."""

import os

import pytest

from containers.rollouts.vllm_process import apart_from_ranks


def test_vllm_compiles_no_sampler_and_is_no_rank_on_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    before = dict(os.environ)
    with apart_from_ranks("1", cache_gib=2):
        assert os.environ["VLLM_USE_FLASHINFER_SAMPLER"] == "0", "with it, vLLM 0.29 ends at its start without nvcc"
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"
        assert not {"RANK", "LOCAL_RANK", "PYTORCH_ALLOC_CONF"} & os.environ.keys()
    assert dict(os.environ) == before
