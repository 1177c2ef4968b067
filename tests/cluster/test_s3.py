"""The same studies in a bucket: bit for bit what a folder holds, also when a tenth of the requests fails."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sonde as package
from cluster.faulty_proxy import FaultyProxy
from cluster.s3_server import KEY, SECRET, assert_same_runs, use
from conftest import SMALL, Sonde
from processes import LONG, alive, wait_for
from sonde.core.errors import SondeError
from sonde.store import index, remote
from sonde.store.datasets import Archive, find_or_mirror_cifar10
from sonde.store.lock import Held, hold
from sonde.store.remote import Remote
from sonde.studies import STUDIES
from stores import at, write_run

for needed in ("moto", "s3fs"):
    pytest.importorskip(needed, reason="`make test-cluster` installs it")

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


def test_a_study_gives_the_same_in_a_bucket_and_in_a_folder(bucket: str, sonde: Sonde, tmp_path: Path) -> None:
    url = f"{bucket}/deep/prefix"
    to_url = sonde("run", "residual", *SMALL, "--runs", url, "--out", "url")
    to_folder = sonde("run", "residual", *SMALL, "--runs", "runs", "--out", "folder")
    assert "Next: " in to_url.stdout  # what follows names the store
    assert to_url.stdout.partition("Next: ")[0] == to_folder.stdout.partition("Next: ")[0]
    assert_same_runs(url, tmp_path / "runs")
    again = sonde("run", "residual", *SMALL, "--runs", url, "--no-figures")
    assert again.stderr.count("already complete") == 4
    assert not list(tmp_path.glob("s3:*"))


def test_every_reader_says_of_a_bucket_what_it_says_of_a_folder(bucket: str, sonde: Sonde, tmp_path: Path) -> None:
    for config in STUDIES["audit"].configs("quick", (42, 123)) + STUDIES["cifar10"].configs("quick", (42,)):
        write_run(at(f"{bucket}/runs"), config)
        write_run(tmp_path / "runs", config)
    for words in (
        ["show"],
        ["show", "--json"],
        ["audit"],
        ["audit", "--json"],
        ["compare", "--only", "model.L=4"],
        ["export", "--study", "cifar10", "--out", "export"],
        ["figures", "audit", "--out", "figures"],
    ):
        ours, theirs = (sonde(*words, "--runs", root).stdout for root in ("runs", f"{bucket}/runs"))
        assert theirs.replace(f"{bucket}/runs", "runs").split() == ours.split()
    sonde("report", "--no-figures", "--runs", f"{bucket}/runs")
    assert f"{bucket}/runs" in (tmp_path / "report.html").read_text()


def without_times(shown: str) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = json.loads(shown)
    for run in runs:
        for session in run["sessions"]:
            del session["started"]
    return runs


def test_a_tenth_of_the_requests_failing_loses_nothing(
    bucket: str,
    server: str,
    sonde: Sonde,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sonde("run", "residual", *SMALL, "--runs", "runs", "--no-figures")
    with FaultyProxy(server, part=0.1, seed=1) as proxy:
        use(proxy.url, monkeypatch)
        sonde("run", "residual", *SMALL, "--runs", f"{bucket}/runs", "--no-figures")
        shown = sonde("show", "--json", "--runs", f"{bucket}/runs").stdout
    assert len(proxy.spoiled) >= 4, f"of {proxy.requests} requests too few were spoiled: {proxy.spoiled}"
    assert 0.05 < proxy.spoiled.total() / proxy.requests < 0.2
    use(server, monkeypatch)
    assert without_times(shown) == without_times(sonde("show", "--json", "--runs", "runs").stdout)
    assert_same_runs(f"{bucket}/runs", tmp_path / "runs")


def test_a_command_that_was_killed_resumes_at_once(bucket: str, sonde: Sonde, tmp_path: Path) -> None:
    url = f"{bucket}/runs"
    command = [sys.executable, "-m", "sonde", "run", "residual", *LONG, "--runs", url]

    def furthest() -> int:
        stored = package.load(url).runs if at(url).walk() else []
        return max((run.manifest.epoch or 0 for run in stored), default=0)

    def leases() -> list[Remote]:
        return [at(url) / name for name in at(url).walk() if name.startswith(".locks/")]

    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(lambda: furthest() >= 3, process)
        finally:
            process.kill()
    workers = [json.loads(lease.read_bytes())["pid"] for lease in leases()]
    wait_for(lambda: not any(map(alive, workers)))
    assert leases(), "the kill came too late to show anything"
    sonde(*command[3:])
    sonde("run", "residual", *LONG, "--runs", "runs")
    assert_same_runs(url, tmp_path / "runs")
    resumed = [len(run.manifest.sessions) for run in package.load(url).runs]
    assert max(resumed) > 1


def test_a_lease_keeps_the_second_process_out(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import sys, sonde.store.lock as lock\n"
        "from sonde.store.files import place\n"
        f"with lock.hold(place({bucket + '/runs'!r}), 'r'):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdin is not None
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    with pytest.raises(Held, match=f"run r is held by process {other.pid}"), hold(at(f"{bucket}/runs"), "r"):
        pass
    other.stdin.close()
    other.wait()
    other.stdout.close()
    with hold(at(f"{bucket}/runs"), "r"):
        pass


def test_an_index_spares_the_requests(
    bucket: str, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "RUNS_TO_INDEX", 10)
    for config in STUDIES["audit"].configs("quick", (42, 123)):
        write_run(at(f"{bucket}/runs"), config)
        write_run(tmp_path / "runs", config)
    package.load(f"{bucket}/runs")
    with FaultyProxy(server, part=0.0) as proxy:
        use(proxy.url, monkeypatch)
        stored = package.load(f"{bucket}/runs")
    assert proxy.requests <= 4
    assert stored.rows.equals(package.load(tmp_path / "runs").rows)


def test_a_data_set_is_copied_from_a_bucket_once(
    bucket: str, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SONDE_CACHE", str(tmp_path))
    tiny = Archive(name="cifar-10-python.tar.gz", url="", size=3, md5="900150983cd24fb0d6963f7d28e17f72")
    (at(bucket) / "sets" / "cifar10" / tiny.name).put(b"abc")
    with FaultyProxy(server, part=0.0) as proxy:
        use(proxy.url, monkeypatch)
        assert find_or_mirror_cifar10(at(f"{bucket}/sets"), tiny).place.read_bytes() == b"abc"
        assert proxy.requests == 2, "a listing and one read: the ETag is the MD5"
        find_or_mirror_cifar10(at(f"{bucket}/sets"), tiny)
        assert proxy.requests == 3


def test_credentials_are_in_no_object_and_no_output(bucket: str, sonde: Sonde, tmp_path: Path) -> None:
    url = f"{bucket}/runs"
    done = sonde("run", "residual", *SMALL, "--only", "model=res_mlp", "--runs", url)
    report = sonde("report", "--runs", url)
    outputs = [done.stdout, done.stderr, report.stdout, report.stderr, (tmp_path / "report.html").read_text()]
    contents = [(at(url) / name).read_bytes() for name in at(url).walk()]
    for secret in (SECRET, KEY):
        assert not any(secret in text for text in outputs)
        assert not any(secret.encode() in content for content in contents)


def test_a_missing_bucket_and_a_server_that_is_away_are_one_line_each(
    bucket: str, sonde: Sonde, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in (["show"], ["run", "residual", *SMALL]):
        done = sonde(*words, "--runs", "s3://no-such-bucket/x", check=False)
        assert done.returncode == 2
        assert done.stderr == "sonde: s3://no-such-bucket does not exist: create it, or name another\n"
    monkeypatch.setattr(remote, "PAUSE", 0.001)
    use("http://127.0.0.1:9", monkeypatch)
    with pytest.raises(SondeError, match=r"no answer in 8 tries \(Could not connect"):
        package.load(f"{bucket}/runs")


def test_no_credentials_at_all_is_one_line(bucket: str, sonde: Sonde, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    done = sonde("show", "--runs", f"{bucket}/runs", check=False)
    assert done.returncode == 2
    assert "no credentials were found" in done.stderr
    assert done.stderr.count("\n") == 1
