"""Figures of runs in the offline modes of wandb, MLflow and trackio, in processes that reach no other machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from atlas import CAPITALS
from foreign import capital_cities, serving
from places import python_path

import trunkline as tl

pytestmark = pytest.mark.sinks

USAGE = {"prompt_tokens": 100, "completion_tokens": 20}
KEY = "sk-a-key-of-this-test-0123456789"

GUARDED = """
import os, socket, sys
connect, sendto = socket.socket.connect, socket.socket.sendto

def near(sock, address):
    if sock.family != socket.AF_UNIX and address[0] not in {"127.0.0.1", "::1", "localhost"}:
        with open(os.environ["CALLED"], "a") as file:
            print(address, file=file)
        raise OSError("this process reaches no other machine")

def guarded(sock, address):
    near(sock, address)
    return connect(sock, address)

socket.socket.connect = guarded
lookup = socket.getaddrinfo

def known(host, *rest, **more):
    if host not in {"127.0.0.1", "::1", "localhost", None, ""}:
        with open(os.environ["CALLED"], "a") as file:
            print(host, file=file)
        raise socket.gaierror("this process looks up no other machine")
    return lookup(host, *rest, **more)

socket.getaddrinfo = known
"""


def play(folder: Path, url: str, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A run in a process whose sockets, and those of its Python children, are refused but for loopback."""
    (folder / "guard").mkdir(exist_ok=True)
    (folder / "guard" / "sitecustomize.py").write_text(GUARDED)
    lines = [json.dumps({"id": c, "question": f"Capital of {c}?", "answer": a}) for c, a in CAPITALS.items()]
    (folder / "q.jsonl").write_text("\n".join(lines))
    command = [sys.executable, "-m", "trunkline.cli", "run", "q.jsonl", "-m", "m", "--base-url", url, "--tools"]
    command += ["atlas:lookup", "-r", "2", "-w", "0", "-o", "r.run", "--price", "prompt=1,generated=2", *options]
    paths = [str(folder / "guard"), python_path()]
    given = {"PYTHONPATH": os.pathsep.join(paths), "CALLED": str(folder / "called"), "OPENAI_API_KEY": KEY}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "MLFLOW", "TRACKIO"))}
    return subprocess.run(
        command, cwd=folder, env=kept | given | {"HOME": str(folder)} | env, capture_output=True, text=True, timeout=150
    )


@pytest.fixture
def played(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A folder with a run whose figures were sent."""
    options, env = request.param
    with serving(lambda body: capital_cities(body) | {"usage": USAGE}) as server:
        done = play(tmp_path, server.url, *options, **{key: value.format(here=tmp_path) for key, value in env.items()})
    assert done.returncode == 0, done.stderr
    assert "failed, and the run goes on" not in done.stderr
    assert not (tmp_path / "called").exists(), (tmp_path / "called").read_text()
    held = b"".join(
        path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size < 1 << 24
    )
    assert KEY.encode() not in held
    assert done.stdout.startswith("r.run   m · 5 tasks × 2 rollouts")
    return tmp_path


def texts(folder: Path, pattern: str) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob(pattern) if path.is_file())


@pytest.mark.parametrize("played", [(("--sink", "wandb:capitals"), {"WANDB_MODE": "offline"})], indirect=True)
def test_wandb_offline(played: Path):
    sent = texts(played / "wandb", "*.wandb")
    for name in (b"accuracy", b"prompt_tokens", b"cost", b"summary/accuracy/value", b"capitals"):
        assert name in sent
    assert b"Capital of France" not in sent, "no question leaves"
    assert b"Brasilia" not in sent, "no answer leaves"


@pytest.mark.parametrize(
    "played", [(("--sink", "mlflow:capitals"), {"MLFLOW_TRACKING_URI": "sqlite:///{here}/m.db"})], indirect=True
)
@pytest.mark.filterwarnings("ignore")  # of its own libraries
def test_mlflow_in_a_file(played: Path):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{played}/m.db")
    (run,) = client.search_runs([client.get_experiment_by_name("capitals").experiment_id])
    assert (run.info.status, run.data.tags["state"], run.info.run_name) == ("FINISHED", "done", "r")
    history = client.get_metric_history(run.info.run_id, "tries")
    assert sorted((one.step, one.value) for one in history) == [(n, 2.0 * n) for n in range(1, 6)]
    assert run.data.metrics["summary/accuracy/value"] == run.data.metrics["accuracy"] == 1.0
    assert run.data.metrics["cost"] > 0
    assert run.data.params["agent.model"] == "m"
    assert b"Capital of France" not in (played / "m.db").read_bytes()


@pytest.mark.parametrize("played", [(("--sink", "trackio:capitals"), {"TRACKIO_DIR": "{here}/trackio"})], indirect=True)
def test_trackio_on_this_machine(played: Path):
    sent = b"".join(path.read_bytes() for path in (played / "trackio").rglob("*") if path.is_file())
    for name in (b"accuracy", b"prompt_tokens", b"summary/accuracy/value"):
        assert name in sent
    assert b"Capital of France" not in sent


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_service_that_is_out_of_reach_costs_a_line_and_no_run(tmp_path: Path, name: str):
    env = {
        "wandb": {"WANDB_MODE": "online", "WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9"},
        "mlflow": {
            "MLFLOW_TRACKING_URI": "http://127.0.0.1:9",
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
            "MLFLOW_HTTP_REQUEST_TIMEOUT": "2",
        },
        "trackio": {"TRACKIO_DIR": "/proc/none"},
    }[name]
    with serving(capital_cities) as server:
        done = play(tmp_path, server.url, "--sink", name, **env)
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout
    assert not (tmp_path / "called").exists()


def test_options_that_a_sink_sets_itself_are_refused():
    for make in (tl.observability.Wandb, tl.observability.Trackio):
        with pytest.raises(tl.errors.ConfigError, match="sets config itself"):
            make("p", config={})
