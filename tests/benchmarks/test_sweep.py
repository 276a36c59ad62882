"""A sweep keeps what it finished, counts nothing twice, and gives one answer whoever does the work."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks import sweep
from benchmarks.records import BenchmarkError
from benchmarks.sweep import Options, Serial, Store, pack, unpack

ROOT = Path(__file__).resolve().parents[2]
KEY = {"model": "m", "window": 4}
JOBS = [(f"cell/{i}", i) for i in range(6)]


def square(number):
    return {"value": number * number}


def fails_at_three(number):
    if number == 3:
        raise FloatingPointError("three is too many")
    return square(number)


def run(folder, jobs=JOBS, do=square, key=KEY, **options):
    """Sweep, and return what is known afterwards and what was said."""
    said = []
    with Store(folder, "stub", key, said.append) as store:
        sweep.sweep(jobs, do, store, Options(work=folder, **options), said.append)
    return store.found, said


def file_of(folder):
    return next(folder.glob("stub-*.jsonl"))


def test_finished_jobs_are_not_done_again(tmp_path):
    done, _ = run(tmp_path, JOBS[:4])
    assert done == {f"cell/{i}": {"value": i * i} for i in range(4)}
    again, said = run(tmp_path, do=lambda n: square(n) if n >= 4 else pytest.fail("done twice"))
    assert list(again) == [name for name, _ in JOBS]
    assert said[0].startswith("4 of 6 jobs are done already")


def test_a_job_that_fails_names_itself_and_loses_nothing(tmp_path):
    with pytest.raises(BenchmarkError, match="job 'cell/3': FloatingPointError: three is too many"):
        run(tmp_path, do=fails_at_three)
    assert list(run(tmp_path, [])[0]) == ["cell/0", "cell/1", "cell/2"]


def test_ctrl_c_in_a_job_loses_nothing(tmp_path):
    def stopped(number):
        if number == 2:
            raise KeyboardInterrupt
        return square(number)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, do=stopped)
    assert list(run(tmp_path)[0]) == [name for name, _ in JOBS]


@pytest.mark.parametrize("cut", [1, 20, 40])
def test_a_torn_last_line_is_done_again(tmp_path, cut):
    run(tmp_path, JOBS[:3])
    whole = file_of(tmp_path).read_bytes()
    file_of(tmp_path).write_bytes(whole[:-cut])
    found, said = run(tmp_path, JOBS[:3])
    assert "the last line was not finished" in said[0]
    assert said[1].startswith("2 of 3 jobs are done already")
    assert len(found) == 3
    lines = file_of(tmp_path).read_bytes().splitlines()
    assert [json.loads(line).get("job") for line in lines] == [None, "cell/0", "cell/1", "cell/2"]


def test_foreign_damaged_and_repeated_lines_do_not_count(tmp_path):
    run(tmp_path, JOBS[:2])
    key = json.loads(file_of(tmp_path).read_text().splitlines()[0])["key"]
    extra = [
        {"key": "other", "job": "cell/5", "result": {"value": 1}},
        {"key": key, "job": "cell/0", "result": {"value": 1}},
        {"key": key, "job": "cell/4"},
        ["cell/3"],
    ]
    with file_of(tmp_path).open("a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in extra) + '{"key": \n\x00\n')
    found, said = run(tmp_path)
    assert "6 damaged, foreign or repeated lines are not counted" in said[0]
    assert found == {f"cell/{i}": {"value": i * i} for i in range(6)}


def test_another_key_is_another_file(tmp_path):
    run(tmp_path, JOBS[:2])
    _, said = run(tmp_path, JOBS[:2], key=KEY | {"window": 8})
    assert said[0].startswith("0 of 2")
    assert len(list(tmp_path.glob("*.jsonl"))) == 2


def test_two_runs_do_not_write_to_one_file(tmp_path):
    with Store(tmp_path, "stub", KEY, print), pytest.raises(BenchmarkError, match="another run is adding to"):
        run(tmp_path)
    run(tmp_path)


def test_time_is_up_before_the_first_job(tmp_path):
    found, _ = run(tmp_path, minutes=0)
    assert found == {}


def test_a_work_folder_that_cannot_be_written_to_is_an_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(BenchmarkError, match="choose another place with --work DIR"):
        run(tmp_path / "file")


@pytest.mark.parametrize("workers", [1, 2])
def test_any_number_of_processes_gives_the_same(tmp_path, workers):
    found, _ = run(tmp_path, workers=workers)
    assert dict(sorted(found.items())) == {f"cell/{i}": {"value": i * i} for i in range(6)}


def test_any_executor_will_do(tmp_path, monkeypatch):
    for pool in (ThreadPoolExecutor(3), Serial()):
        monkeypatch.setattr(sweep, "ProcessPoolExecutor", lambda *args, pool=pool, **options: pool)
        found, _ = run(tmp_path / type(pool).__name__, workers=2)
        assert dict(sorted(found.items())) == {f"cell/{i}": {"value": i * i} for i in range(6)}


def test_a_record_holds_enough_to_go_on_from(tmp_path):
    jobs = [*JOBS, ("other", 9), ("list/0", 1)]
    with Store(tmp_path / "old", "stub", KEY, print) as store:
        sweep.sweep(jobs, square, store, Options(), print)
        store.add("list/0x", [1, 2], 0.5)
    record = tmp_path / "record.json"
    record.write_text(json.dumps({"data": {"jobs": store.record()}}))
    said = []
    with Store(tmp_path / "new", "stub", KEY, said.append) as fresh:
        fresh.seed(record)
    assert fresh.found == store.found
    assert fresh.cpu_s == pytest.approx(store.cpu_s, abs=0.1)
    with Store(tmp_path / "new", "stub", KEY | {"window": 8}, said.append) as other:
        other.seed(record)
        other.seed(tmp_path / "missing.json")
        assert other.found == {}
        record.write_text('{"data": {}}')
        other.seed(record)
    assert "is no record of a sweep" in said[-1]


def test_packing_is_undone():
    results = {"a/1": {"x": 1.5, "y": 2}, "a/12": {"x": 3.0, "y": 4}, "b/0": {"x": 1}, "c/0": [1], "d": {"x": 1}}
    results |= {"e/0": {"x": True}, "f/0": {"x": None}}
    assert unpack(json.loads(json.dumps(pack(results)))) == results


# ---- A real run of a small model, killed; and a real cluster ---------------------------------------------------------


def command(work, out, *more):
    text = work.parent / "text.txt"
    text.write_text("It was a very fine day, and she walked to the village with her sister, who spoke of nothing else.")
    options = ["--model", "tiny", "--text", str(text), "--window", "12", "--work", str(work), "--out", str(out)]
    return [sys.executable, "-m", "benchmarks", "grid", *options, "--machine", "box", *more]


def finished(command):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done


def data(out):
    found = json.loads((out / "box" / "grid-tiny.json").read_text())["data"]
    found["jobs"]["cells"] = {name: found["jobs"]["cells"][name] for name in sorted(found["jobs"]["cells"])}
    for lists in found["jobs"]["cells"].values():
        order = sorted(range(len(lists["place"])), key=lists["place"].__getitem__)
        lists |= {kind: [values[i] for i in order] for kind, values in lists.items()}
    del found["jobs"]["cpu_s"]
    return found


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    """The record of an undisturbed run in one process."""
    folder = tmp_path_factory.mktemp("serial")
    finished(command(folder / "work", folder / "out"))
    return data(folder / "out")


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_killed_run_goes_on_where_it_was(serial, tmp_path, workers):
    work, out = tmp_path / "work", tmp_path / "out"
    lines = 0
    for wanted in (20, 60):
        process = subprocess.Popen(
            command(work, out, "--workers", workers), cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True
        )
        deadline = time.monotonic() + 120
        while lines < wanted and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
            lines = sum(len(file.read_bytes().splitlines()) for file in work.glob("*.jsonl"))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert lines >= wanted
        assert not (out / "box" / "grid-tiny.json").exists()
    kept = sum(len(file.read_bytes().splitlines()) for file in work.glob("*.jsonl"))
    done = finished(command(work, out, "--workers", workers))
    already = int(done.stderr.split(" jobs are done already")[0].split()[-3])
    assert kept - 2 <= already <= kept  # the file's first line is no job, its last may have been torn
    assert data(out) == serial
    names = [json.loads(line).get("job") for file in work.glob("*.jsonl") for line in file.read_text().splitlines()]
    assert len(names) == len(set(names))


@pytest.mark.slow
def test_ctrl_c_stops_a_run_cleanly(serial, tmp_path):
    work, out = tmp_path / "work", tmp_path / "out"
    process = subprocess.Popen(
        command(work, out, "--workers", "2"), cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while process.poll() is None and not any(len(f.read_bytes().splitlines()) > 10 for f in work.glob("*.jsonl")):
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "finished jobs are kept in" in said
    assert "Traceback" not in said
    finished(command(work, out))
    assert data(out) == serial


def serve_cluster(pipe):
    """Start a Dask cluster of two worker processes, tell its address, and end it when the pipe closes."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
    ) as cluster:
        pipe.send(cluster.scheduler_address)
        pipe.poll(None)


@pytest.mark.slow
def test_a_dask_cluster_of_two_workers_gives_the_serial_numbers(serial, tmp_path):
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    cluster = context.Process(target=serve_cluster, args=(theirs,))
    cluster.start()
    try:
        assert ours.poll(120)
        finished(command(tmp_path / "work", tmp_path / "out", "--scheduler", ours.recv()))
    finally:
        ours.close()
        theirs.close()
        cluster.join(30)
        if cluster.is_alive():
            cluster.terminate()
    assert data(tmp_path / "out") == serial


def test_a_scheduler_that_does_not_answer_is_an_error(tmp_path):
    with pytest.raises(BenchmarkError, match="no Dask scheduler answers at nonsense"):
        run(tmp_path, scheduler="nonsense://here")


def test_without_dask_the_message_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(BenchmarkError, match=r"pip install 'cachequant-lib\[cluster\]'"):
        run(tmp_path, scheduler="tcp://127.0.0.1:1")
