"""The recipes of docs/cluster: each has the form that its reader asks for, and they fit together.

The schemas have what the resources' definitions say of the fields that are used here: names, types and allowed values
of Kubeflow's PyTorchJob v1 and MPIJob v2beta1, and of a pod's template. A field that they do not know is an error.
"""

import re
import subprocess
from pathlib import Path

import pytest

from pmpp.parallel import environment

jsonschema, yaml = pytest.importorskip("jsonschema"), pytest.importorskip("yaml")

HERE = Path("docs/cluster")


def exactly(required=(), **fields):
    """An object with these fields and no others."""
    return {"type": "object", "properties": fields, "required": list(required), "additionalProperties": False}


def list_of(item):
    return {"type": "array", "items": item, "minItems": 1}


TEXT, COUNT = {"type": "string", "minLength": 1}, {"type": "integer", "minimum": 1}
NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}  # of a DNS label, as Kubernetes asks
QUANTITY = {"oneOf": [COUNT, {"type": "string", "pattern": "^[0-9]+(Ki|Mi|Gi)$"}]}
CONTAINER = exactly(
    ("name", "image"),
    name=NAME,
    image={"type": "string", "pattern": r"^[a-z0-9.]+/[a-z0-9-]+:[\w.]+$"},
    command=list_of(TEXT),
    resources=exactly(limits={"type": "object", "additionalProperties": QUANTITY}),
    volumeMounts=list_of(exactly(("name", "mountPath"), name=NAME, mountPath=TEXT)),
)
VOLUME = exactly(("name",), name=NAME, emptyDir=exactly(medium={"enum": ["", "Memory"]}, sizeLimit=QUANTITY))
POD = exactly(("spec",), spec=exactly(("containers",), containers=list_of(CONTAINER), volumes=list_of(VOLUME)))
RESTART = {"enum": ["Always", "OnFailure", "Never", "ExitCode"]}
REPLICAS = exactly(("replicas", "template"), replicas=COUNT, restartPolicy=RESTART, template=POD)
CLEANING = exactly(cleanPodPolicy={"enum": ["None", "Running", "All"]})


def job(version, kind, **spec):
    return exactly(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": f"kubeflow.org/{version}"},
        kind={"const": kind},
        metadata=exactly(("name",), name=NAME),
        spec=exactly(spec, **spec),
    )


SCHEMAS = {
    "pytorchjob": job(
        "v1",
        "PyTorchJob",
        nprocPerNode={"type": "string", "pattern": "^([0-9]+|auto|cpu|gpu)$"},
        pytorchReplicaSpecs=exactly(("Master",), Master=REPLICAS, Worker=REPLICAS),
    ),
    "mpijob": job(
        "v2beta1",
        "MPIJob",
        slotsPerWorker=COUNT,
        runPolicy=CLEANING,
        mpiReplicaSpecs=exactly(("Launcher", "Worker"), Launcher=REPLICAS, Worker=REPLICAS),
    ),
}


def read(name):
    return yaml.safe_load((HERE / f"{name}.yaml").read_text(encoding="utf-8"))


def gpus(replicas):
    return replicas["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_job_has_the_form_of_its_kind(name):
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name])
    jsonschema.validate(read(name), SCHEMAS[name])


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("pytorchjob", ("spec", "nprocPerNode"), 8),  # the definition asks for a string
        ("pytorchjob", ("spec", "pytorchReplicaSpecs", "Worker", "restartPolicy"), "Sometimes"),
        ("pytorchjob", ("metadata", "name"), "PMPP_train"),
        ("mpijob", ("spec", "mpiReplicaSpecs", "Worker", "replicas"), "2"),
        ("mpijob", ("spec", "runPolicy", "cleanPodPolicy"), "Always"),
        ("mpijob", ("spec", "slots"), 8),
    ],
)
def test_a_schema_finds_what_is_wrong(name, path, value):
    data = read(name)
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, SCHEMAS[name])


def test_there_is_a_rank_for_each_gpu():
    spec = read("pytorchjob")["spec"]
    parts = spec["pytorchReplicaSpecs"]
    assert int(spec["nprocPerNode"]) == gpus(parts["Master"]) == gpus(parts["Worker"])
    for replicas in parts.values():
        pod = replicas["template"]["spec"]
        assert pod["containers"][0]["name"] == "pytorch"
        assert [mount["name"] for mount in pod["containers"][0]["volumeMounts"]] == [pod["volumes"][0]["name"]]
    spec = read("mpijob")["spec"]
    worker = spec["mpiReplicaSpecs"]["Worker"]
    command = spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["command"]
    assert command[0] == "mpirun"
    assert int(command[command.index("-n") + 1]) == worker["replicas"] * spec["slotsPerWorker"]
    assert gpus(worker) == spec["slotsPerWorker"]


def options():
    lines = (HERE / "slurm.sbatch").read_text(encoding="utf-8").splitlines()
    return dict(
        re.fullmatch(r"#SBATCH --([a-z-]+)=(\S+)", line).groups() for line in lines if line.startswith("#SBATCH")
    )


def test_the_batch_script_is_bash_with_options_of_sbatch():
    text = (HERE / "slurm.sbatch").read_text(encoding="utf-8")
    assert text.startswith("#!/bin/bash\n")
    subprocess.run(["bash", "-n", str(HERE / "slurm.sbatch")], check=True)
    found = options()
    assert set(found) <= {
        "job-name", "nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "time", "output"
    }  # fmt: skip
    assert found["ntasks-per-node"] == found["gpus-per-node"]
    assert re.fullmatch(r"\d\d:\d\d:\d\d", found["time"])
    commands = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert [line.split()[0] for line in commands[-1:]] == ["srun"]
    assert not any(line.startswith("#SBATCH") for line in text.splitlines()[text.splitlines().index(commands[0]) :])


def test_what_the_batch_script_and_srun_set_makes_a_rank(tmp_path):
    """The script runs with stand-ins for Slurm's commands, and the rank reads what they left in the environment."""
    # More names than a pipe holds: whoever reads only the first would stop the one who writes.
    (tmp_path / "scontrol").write_text("#!/bin/bash\nseq -f node%g 1 20000\n")
    (tmp_path / "srun").write_text('#!/bin/bash\necho "$MASTER_ADDR $MASTER_PORT $*"\n')
    for command in tmp_path.iterdir():
        command.chmod(0o755)
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_ID": "4321"}
    done = subprocess.run(
        ["bash", str(HERE / "slurm.sbatch"), "train.py", "--epochs=2"],
        env=variables, capture_output=True, text=True, check=True,
    )  # fmt: skip
    address, port, *command = done.stdout.split()
    assert command == ["--kill-on-bad-exit=1", "python", "train.py", "--epochs=2"]
    size = int(options()["nodes"]) * int(options()["ntasks-per-node"])
    place = environment.place(
        {
            "MASTER_ADDR": address, "MASTER_PORT": port, "SLURM_PROCID": "9", "SLURM_STEP_NUM_TASKS": str(size),
            "SLURM_LOCALID": "1",
        }
    )  # fmt: skip
    assert (place.starter, place.rank, place.size, place.local_rank) == (environment.SLURM, 9, 16, 1)
    assert (address, port) == ("node1", "24321")


def test_the_image_copies_what_is_there_and_has_what_the_jobs_call():
    text = (HERE / "Containerfile").read_text(encoding="utf-8")
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    instructions = [line.split(maxsplit=1) for line in lines]
    assert [word for word, _ in instructions[:2]] == ["ARG", "FROM"]
    assert {word for word, _ in instructions} <= {"ARG", "FROM", "RUN", "COPY", "WORKDIR"}
    copied = [name for word, rest in instructions if word == "COPY" for name in rest.split()[:-1]]
    for name in copied:
        assert name == "train.py" or Path(name).exists(), name  # the first is the reader's own
    assert "openmpi-bin" in text  # mpirun
    extras = re.search(r"/opt/pmpp\[([\w-]+)\]", text)[1]
    assert f"\n{extras} = [" in Path("pyproject.toml").read_text(encoding="utf-8")
    commands = [
        container["command"][0]
        for name in SCHEMAS
        for replicas in next(
            value for key, value in read(name)["spec"].items() if key.endswith("ReplicaSpecs")
        ).values()
        for container in replicas["template"]["spec"]["containers"]
        if "command" in container
    ]
    assert set(commands) == {"torchrun", "mpirun"}
