"""The base job template of a Kubernetes work pool: a pod in which one flow run works, with the limits of a GPU profile.

Prefect's own Kubernetes worker makes the pods. A stage in a pod is a process of the flow (`runtime.kind: process`), so
what Docker would enforce, the pod has to give: /dev/shm of the profile's size above all, of which Kubernetes gives 64
MiB by itself. The system check of a run refuses a pod without it.
"""

from collections.abc import Mapping
from typing import Any

from containers.contracts.hardware import GIB, GpuProfile
from containers.contracts.stop_grace import LONGEST_S

PROJECT_FOLDER = "/srv/rlhf"
# Ordinary ids: the image's own user; the volume of the project is its group's.
_USER = 1000
# After the stage's own grace the flow still tells Prefect and MLflow.
_CLOSING_S = 60
_TMP_GIB = 4
_GPU_RESOURCE = "nvidia.com/gpu"


def job_template(
    profile: GpuProfile,
    *,
    image: str,
    claim: str,
    namespace: str = "default",
    memory_gib: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return what `prefect work-pool create --base-job-template` reads.

    Args:
        image: with orchestrator and stages (containers/kubernetes/build.sh).
        claim: the PersistentVolumeClaim with configurations, data and store; it lasts longer than any pod.
        memory_gib: limit of the pod, /dev/shm included; None: the profile's `host_memory_gib`, or no limit.
        environment: further variables, as addresses of the servers.
    """
    limit = memory_gib if memory_gib is not None else profile.host_memory_gib
    memory = f"{int(limit * GIB / 1024**2)}Mi" if isinstance(limit, int | float) else None
    cpus = str(profile.num_processes * profile.num_threads)
    variables = {
        **_text("name", "Name of the job; Prefect makes one.", None),
        **_text("namespace", "Namespace of the pods.", namespace),
        **_text("image", "Image with orchestrator and stages.", image),
        **_text("image_pull_policy", "IfNotPresent, Always or Never.", "IfNotPresent"),
        **_text("service_account_name", "Account of the pods; they need no right in the cluster.", None),
        **_text("command", "Prefect's own, which executes the flow run.", None),
        **_text("claim", "PersistentVolumeClaim with configurations, data and store.", claim),
        **_text("cpu_request", f"Ranks times threads of profile `{profile.name}`.", cpus),
        **_text("memory_limit", "Of the pod, /dev/shm included; a stage beyond it is killed.", memory),
        "labels": {"type": "object", "default": {}},
        "annotations": {"type": "object", "default": {}},
        "env": {
            "type": "object",
            "default": {**_environment(), **(environment or {})},
            "description": "Variables of the flow run. Secrets belong into Prefect blocks or a Kubernetes secret.",
        },
        "finished_job_ttl": {
            "type": "integer",
            "default": 86400,
            "description": "Seconds until Kubernetes deletes an ended job.",
        },
        "pod_watch_timeout_seconds": {
            "type": "integer",
            "default": 1800,
            "description": "Seconds to wait for a node with free GPUs and for the image.",
        },
        "job_watch_timeout_seconds": {"type": "integer", "description": "None: a training may take days."},
        "stream_output": {"type": "boolean", "default": True},
        "cluster_config": {"description": "A KubernetesClusterConfig block; none: the worker's own cluster."},
    }
    used = ("name", "namespace", "command", "env", "labels", "annotations", "stream_output", "cluster_config")
    waits = ("pod_watch_timeout_seconds", "job_watch_timeout_seconds")
    return {
        "job_configuration": {
            **{name: f"{{{{ {name} }}}}" for name in (*used, *waits)},
            "job_manifest": _job(profile),
        },
        "variables": {"type": "object", "properties": variables},
    }


def _text(name: str, description: str, default: str | None) -> dict[str, dict[str, str]]:
    given = {} if default is None else {"default": default}
    return {name: {"type": "string", "description": description, **given}}


def _environment() -> dict[str, str]:
    return {
        "RLHF_PROJECT": PROJECT_FOLDER,
        "HOME": "/tmp",  # noqa: S108 - a volume of the pod
        "PREFECT_HOME": "/tmp/prefect",  # noqa: S108
        "HF_HOME": f"{PROJECT_FOLDER}/huggingface",
        # A pod that is gone is noticed, and its run goes on elsewhere.
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
    }


def _job(profile: GpuProfile) -> dict[str, Any]:
    """The manifest; `{{ … }}` are the pool's variables."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "labels": "{{ labels }}",
            "annotations": "{{ annotations }}",
            "namespace": "{{ namespace }}",
            "generateName": "{{ name }}-",
        },
        "spec": {
            # Prefect starts the run again, which reuses what is finished; Kubernetes would start it a second time.
            "backoffLimit": 0,
            "parallelism": 1,
            "completions": 1,
            "ttlSecondsAfterFinished": "{{ finished_job_ttl }}",
            "template": {"spec": _pod(profile)},
        },
    }


def _pod(profile: GpuProfile) -> dict[str, Any]:
    gpus = {_GPU_RESOURCE: str(profile.num_gpus)} if profile.num_gpus else {}
    on_gpu_nodes = {"tolerations": [{"key": _GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}]}
    return {
        # Once: a second pod would meet the first one's locks.
        "restartPolicy": "Never",
        # A stage saves first, and the flow says how it ended.
        "terminationGracePeriodSeconds": int(LONGEST_S) + _CLOSING_S,
        "serviceAccountName": "{{ service_account_name }}",
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **(on_gpu_nodes if gpus else {}),
        "containers": [
            {
                "name": "prefect-job",
                "image": "{{ image }}",
                "imagePullPolicy": "{{ image_pull_policy }}",
                "args": "{{ command }}",
                "env": "{{ env }}",
                "workingDir": PROJECT_FOLDER,
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                "resources": {
                    "requests": {"cpu": "{{ cpu_request }}", "memory": "{{ memory_limit }}", **gpus},
                    "limits": {"memory": "{{ memory_limit }}", **gpus},
                },
                "volumeMounts": [
                    {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
                    {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
                    {"name": "project", "mountPath": PROJECT_FOLDER},
                ],
            }
        ],
        "volumes": [
            {
                "name": "shm",
                "emptyDir": {"medium": "Memory", "sizeLimit": f"{int(profile.shm_size_gib * 1024)}Mi"},
            },
            {"name": "tmp", "emptyDir": {"sizeLimit": f"{_TMP_GIB}Gi"}},
            {"name": "project", "persistentVolumeClaim": {"claimName": "{{ claim }}"}},
        ],
    }
