"""The files for clusters: whoever reads them takes them, and they call what is there."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from harness.__main__ import main

CLUSTERS = Path(__file__).parents[1] / "clusters"
# Names in KubeRay's RayJob and RayCluster (ray.io/v1) and in a pod.
JOB = {"entrypoint", "backoffLimit", "shutdownAfterJobFinishes", "rayClusterSpec"}
GROUP = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
CONTAINER = {"name", "image", "resources", "volumeMounts"}


def load(name: str) -> Any:
    return yaml.safe_load((CLUSTERS / name).read_text(encoding="utf-8"))


def test_ray_takes_the_cluster_file() -> None:
    content = load("ray_up.yaml")
    prepared = prepare_config(content)
    validate_config(prepared)
    [node] = prepared["available_node_types"].values()
    assert node["min_workers"] == node["max_workers"] == len(content["provider"]["worker_ips"])
    for commands in (content["head_start_ray_commands"], content["worker_start_ray_commands"]):
        stop, start = (command.split() for command in commands)
        assert stop[1:] == ["stop"] and start[0] == stop[0] and start[1] == "start"


def test_the_kuberay_job_names_fields_that_there_are(tmp_path: Path) -> None:
    content = load("kuberay.yaml")
    assert (content["apiVersion"], content["kind"]) == ("ray.io/v1", "RayJob")
    assert content["spec"].keys() == JOB and content["spec"]["rayClusterSpec"].keys() == {
        "headGroupSpec",
        "workerGroupSpecs",
    }
    head = content["spec"]["rayClusterSpec"]["headGroupSpec"]
    workers = content["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    images = set()
    for group in (head, *workers):
        assert group.keys() <= GROUP
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        [container] = group["template"]["spec"]["containers"]
        assert container.keys() <= CONTAINER
        images.add(container["image"])
    assert len(images) == 1  # one project, one path
    [volume] = head["template"]["spec"]["volumes"]
    assert head["template"]["spec"]["containers"][0]["volumeMounts"] == [
        {"name": volume["name"], "mountPath": "/results"}
    ]
    command = content["spec"]["entrypoint"].split(" -m harness ")[1].replace("sweep", "plan", 1).split()
    assert main([*command[:2], "--results", str(tmp_path)]) == 0


def test_the_slurm_script_is_a_script() -> None:
    subprocess.run(["bash", "-n", CLUSTERS / "slurm.sh"], check=True)
