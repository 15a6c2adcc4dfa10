"""The job template of a Kubernetes pool: Prefect's own worker makes a job of it, and Kubernetes reads every field."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from kubernetes_asyncio import client
from prefect.client.schemas.objects import FlowRun
from prefect.states import Pending
from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

from containers.contracts.hardware import GpuProfile
from flows.cli.main import main
from flows.serving.pod_template import job_template

pytestmark = pytest.mark.waits  # Kubernetes' client takes seconds to load
RUN = "configs/runs/helpsteer3-qwen3-8b.yaml"
EIGHT = GpuProfile(name="8x80gb", num_gpus=8, num_processes=8, gpu_memory_gib=80, shm_size_gib=32, num_threads=4)
ON_CPU = GpuProfile(name="cpu", num_gpus=0, precision="float32", shm_size_gib=0.5)


def made(profile: GpuProfile, values: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """The job as the worker would send it for one flow run."""
    template = job_template(profile, image="registry.example/rlhf-pod:1", claim="rlhf", **more)
    configuration = asyncio.run(
        KubernetesWorkerJobConfiguration.from_template_and_values(base_job_template=template, values=values or {})
    )
    configuration.prepare_for_flow_run(FlowRun(flow_id="0" * 32, name="brave-crane", state=Pending()))
    job: dict[str, Any] = configuration.job_manifest
    return job


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = job["spec"]["template"]["spec"]
    return pod


class Answer:
    """What `ApiClient.deserialize` reads."""

    def __init__(self, tree: dict[str, Any]) -> None:
        self.data = json.dumps(tree)


def known(tree: dict[str, Any]) -> dict[str, Any]:
    """The job as Kubernetes' client reads and writes it: a field that it does not know is gone."""

    async def read() -> dict[str, Any]:
        async with client.ApiClient() as api:
            job = api.deserialize(Answer(tree), "V1Job")
            found: dict[str, Any] = api.sanitize_for_serialization(job)
            return found

    return asyncio.run(read())


@pytest.mark.parametrize("profile", [EIGHT, ON_CPU])
def test_kubernetes_knows_every_field_of_the_job(profile: GpuProfile) -> None:
    job = made(profile, memory_gib=400)
    read = known(job)
    assert read["spec"]["template"]["spec"] == pod_of(job)
    assert {**read["spec"], "template": None} == {**job["spec"], "template": None}


def test_the_pod_has_the_profiles_shared_memory_gpus_and_time_to_save() -> None:
    job = made(EIGHT, memory_gib=400, environment={"MLFLOW_TRACKING_URI": "http://mlflow:5000"})
    pod = pod_of(job)
    (one,) = pod["containers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "32768Mi"}
    assert {"name": "shm", "mountPath": "/dev/shm"} in one["volumeMounts"]
    assert volumes["project"]["persistentVolumeClaim"]["claimName"] == "rlhf"
    assert one["resources"]["limits"] == {"memory": "409600Mi", "nvidia.com/gpu": "8"}
    assert one["resources"]["requests"] == {"cpu": "32", "memory": "409600Mi", "nvidia.com/gpu": "8"}
    assert pod["terminationGracePeriodSeconds"] > 900
    assert (job["spec"]["backoffLimit"], pod["restartPolicy"]) == (0, "Never")
    assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
    environment = {entry["name"]: entry.get("value") for entry in one["env"]}
    assert environment["MLFLOW_TRACKING_URI"] == "http://mlflow:5000"
    assert environment["RLHF_PROJECT"] == "/srv/rlhf"
    assert environment["PREFECT__FLOW_RUN_ID"]


def test_without_gpus_and_limits_nothing_is_asked_for() -> None:
    pod = pod_of(made(ON_CPU))
    (one,) = pod["containers"]
    assert "tolerations" not in pod
    assert one["resources"] == {"requests": {"cpu": "1"}, "limits": {}}


def test_a_deployment_can_change_what_the_pool_offers() -> None:
    (one,) = pod_of(made(EIGHT, {"image": "other:2", "memory_limit": "100Gi"}))["containers"]
    assert one["image"] == "other:2" and one["resources"]["limits"]["memory"] == "100Gi"


def test_it_is_printed_for_a_run_and_what_would_not_work_is_said_at_once(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["pod-template", "-c", str(project / RUN), "--image", "registry.example/rlhf-pod:1"]
    assert main([*options, "--profile", "8x80gb", "--claim", "rlhf"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["variables"]["properties"]["image"]["default"] == "registry.example/rlhf-pod:1"
    wrong = ["--profile", "7x48gb", "--claim", "Not_a_name", "--env", "TOKEN", "--memory-gib", "8"]
    assert main([*options, *wrong, "--set", "runtime.kind=docker"]) == 2
    said = capsys.readouterr().err
    for part in ("runtime.kind: docker", "`Not_a_name` is no name", "`TOKEN` found", "8 GiB hold nothing beside"):
        assert part in said
