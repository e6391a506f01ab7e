"""The files of deploy/ are what their readers take: systemd, compose and Docker; and their commands exist."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from dockerfile_parse import DockerfileParser

DEPLOY = Path(__file__).parent.parent.parent / "deploy"


def test_the_systemd_unit_verifies(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        assert os.environ.get("CI") != "true", "systemd-analyze is missing"
        pytest.skip("systemd-analyze is not installed")
    # The program and its folder are the only things that this machine need not have.
    text = (DEPLOY / "systemd" / "tenure-worker@.service").read_text()
    unit = tmp_path / "tenure-worker@.service"
    unit.write_text(text.replace("/opt/tenure/bin/tenure", sys.executable).replace("/opt/tenure", str(tmp_path)))
    done = subprocess.run(
        [analyze, "verify", f"{tmp_path}/tenure-worker@a.service"], capture_output=True, text=True, check=False
    )
    ours = [line for line in done.stderr.splitlines() if "tenure-worker" in line]
    assert ours == []


def test_a_broken_unit_is_seen(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        assert os.environ.get("CI") != "true", "systemd-analyze is missing"
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "tenure-worker@.service"
    unit.write_text("[Service]\nType=nothing\nExecStart=/bin/true\n")
    done = subprocess.run(
        [analyze, "verify", f"{tmp_path}/tenure-worker@a.service"], capture_output=True, text=True, check=False
    )
    assert "tenure-worker" in done.stderr


def test_the_compose_file_fits_the_schema() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dockerfile_runs_without_root_and_is_stopped_by_the_drain_signal() -> None:
    parser = DockerfileParser(path=str(DEPLOY / "Dockerfile"))
    last = {entry["instruction"]: entry["value"] for entry in parser.structure}
    assert last["USER"] == "10001"
    assert last["STOPSIGNAL"] == "SIGTERM"
    assert last["ENTRYPOINT"] == '["tenure"]'
    assert parser.is_multistage
    copied = [
        e["value"].split()[:-1] for e in parser.structure if e["instruction"] == "COPY" and "--from" not in e["value"]
    ]
    for sources in copied:
        for source in sources:
            assert (DEPLOY.parent / source).exists(), source


@pytest.mark.parametrize("name", ["systemd/tenure-worker@.service", "compose.yaml"])
def test_stopping_waits_longer_than_the_drain(name: str) -> None:
    text = (DEPLOY / name).read_text()
    drain = re.search(r'--drain"?,? "?(\d+)', text)
    stop = re.search(r"(?:TimeoutStopSec=|stop_grace_period: )(\d+)", text)
    assert drain is not None
    assert stop is not None
    assert int(stop[1]) > int(drain[1])
