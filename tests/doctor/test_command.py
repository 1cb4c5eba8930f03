"""``clove doctor``: checks of a machine and of a run."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from clove_ssl import cores
from clove_ssl.config import files
from clove_ssl.config.finetuning import protocol
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.cores import core_quota
from clove_ssl.doctor import command as doctor
from clove_ssl.doctor import machine, self_test
from clove_ssl.doctor.command import examine, run_checks
from clove_ssl.doctor.machine import Check, verdict
from clove_ssl.errors import UserError
from clove_ssl.runs import directory
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.tasks.scoring.scores import Scores, ScoreTable, write_scores
from clove_ssl.training.checkpoints import CheckpointStore

GIB = 2**30


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run of 50 steps that was interrupted after 20."""
    made = directory.create(tmp_path / "run")
    files.save(PretrainConfig(out=made.path, steps=50, batch_size=4), made.config)
    rows = [
        {"step": step, "loss": 99.0, "epoch": step * 4 / 100, "feature_std": 0.9}
        for step in range(1, 21)
    ]
    made.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return made


def save_checkpoints(run: RunDirectory, *steps: int) -> list[Path]:
    store = CheckpointStore(run.checkpoints, keep=5, warn=lambda text: None)
    return [store.save(step, {"step": step}) for step in steps]


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def check_called(name: str, run: RunDirectory) -> Check:
    (found,) = [check for check in run_checks(run) if check.name == name]
    return found


@pytest.mark.parametrize(
    ("check", "state", "words"),
    [
        (machine.judge_version("torch", "2.15.0+cu128", (2, 11)), "ok", "2.15.0+cu128"),
        (machine.judge_version("torch", "2.9.1", (2, 11)), "problem", "torch>=2.11"),
        (
            machine.judge_no_gpu(has_driver=False, built_for_cuda=False),
            "look",
            "some hundred photos",
        ),
        (machine.judge_no_gpu(has_driver=True, built_for_cuda=False), "problem", "CUDA build"),
        (machine.judge_no_gpu(has_driver=True, built_for_cuda=True), "problem", "nvidia-smi"),
        (machine.judge_gpu(1, "Big", 80 * GIB, has_bf16=True), "ok", "Big, 80 GiB, bf16"),
        (machine.judge_gpu(0, "Old", 8 * GIB, has_bf16=False), "look", "fp16"),
        (machine.judge_nccl(True), "ok", "torchrun"),
        (machine.judge_nccl(False), "problem", "NCCL"),
        (machine.judge_cores(8, None), "ok", "8"),
        (machine.judge_cores(8, 16.0), "ok", "8"),
        (machine.judge_cores(64, 2.5), "ok", "64, of which the container grants 2.5"),
        (machine.judge_cores(64, 1.5), "look", "share"),
        (machine.judge_cores(1, None), "look", "share"),
        (machine.judge_memory(32 * GIB), "ok", "32.0 GiB"),
        (machine.judge_memory(GIB), "look", "--data.workers"),
        (machine.judge_memory(None), "ok", "not measured"),
        (machine.judge_disk(100 * GIB, "/runs"), "ok", "100.0 GiB free in /runs"),
        (machine.judge_disk(5 * GIB, "/runs"), "look", "5.0 GiB"),
        (machine.judge_disk(GIB // 2, "/runs"), "problem", "free some space"),
        (machine.judge_shared_memory(2 * GIB), "ok", "2.0 GiB"),
        (machine.judge_shared_memory(64 * 2**20), "look", "--shm-size"),
        (machine.judge_shared_memory(None), "ok", "no /dev/shm"),
        (machine.judge_open_files(1024), "ok", "1,024"),
        (machine.judge_open_files(256), "look", "ulimit -n"),
        (machine.judge_open_files(resource.RLIM_INFINITY), "ok", "no limit"),
        (machine.judge_formats({"JPEG", "PNG", "WebP"}), "ok", "JPEG, PNG, WebP"),
        (machine.judge_formats({"JPEG", "PNG"}), "look", "WebP"),
        (machine.judge_formats({"PNG", "WebP"}), "problem", "JPEG"),
    ],
)
def test_a_measurement_is_judged(check: Check, state: str, words: str) -> None:
    assert check.state == state
    assert words in check.text


def test_a_missing_package_comes_with_its_command() -> None:
    check = machine.check_package("no-such-package-anywhere")
    assert check.state == "problem"
    assert "pip install no-such-package-anywhere" in check.text


def test_installed_packages_are_found() -> None:
    assert machine.check_package("torch").text == torch.__version__
    assert machine.check_operators().state == "ok"


def test_the_lowest_version_is_read_from_the_requirements() -> None:
    asked = ["torchvision>=0.26", "torch>=2.11", "numpy"]
    assert machine.minimum_version("torch", asked) == (2, 11)
    assert machine.minimum_version("numpy", asked) == ()


def test_extras_are_listed_with_the_command_for_missing_ones() -> None:
    asked = [
        "torch>=2.11",
        'timm>=1.0; extra == "timm"',
        'wandb>=0.17; extra == "wandb"',
        'pytest>=8; extra == "dev"',
    ]
    present, missing = machine.judge_extras(asked, lambda package: package == "timm")
    assert present == Check("extra timm", "ok", "installed")
    assert missing.name == "extra wandb"
    assert "pip install 'clove-ssl[wandb]'" in missing.text


@pytest.mark.parametrize(("text", "quota"), [("max 100000", None), ("250000 100000", 2.5)])
def test_the_cores_of_a_container_are_read(tmp_path: Path, text: str, quota: float | None) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert core_quota(tmp_path / "cpu.max") == quota


def test_no_container_means_no_quota(tmp_path: Path) -> None:
    assert core_quota(tmp_path / "cpu.max") is None


@pytest.mark.parametrize(("limit", "expected"), [("max", 8 * GIB), (str(3 * GIB), 2 * GIB)])
def test_a_container_limits_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, expected: int
) -> None:
    (tmp_path / "memory.max").write_text(limit + "\n")
    (tmp_path / "memory.current").write_text(f"{2 * GIB}\n")
    (tmp_path / "memory.stat").write_text(f"active_file 7\ninactive_file {GIB}\n")
    (tmp_path / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable:   {8 * GIB // 1024} kB\n")
    monkeypatch.setattr(cores, "CONTAINER", tmp_path)
    monkeypatch.setattr(cores, "MEMORY_FACTS", tmp_path / "meminfo")
    assert cores.available_memory() == expected


def test_a_container_has_no_more_than_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "facts").write_text("MemTotal:       65000000 kB\n")
    monkeypatch.setattr(cores, "MEMORY_FACTS", tmp_path / "facts")
    monkeypatch.setattr(cores, "CONTAINER", tmp_path)
    assert cores.total_memory() == 65_000_000 * 1024
    (tmp_path / "memory.max").write_text("1000000\n")
    assert cores.total_memory() == 1_000_000


def test_every_gpu_gets_a_line_and_several_need_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [
        SimpleNamespace(name="New", total_memory=80 * GIB, major=9),
        SimpleNamespace(name="Old", total_memory=16 * GIB, major=7),
    ]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(cards))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: cards[index])
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    checks = list(machine.gpu_checks())
    assert [(check.name, check.state) for check in checks] == [
        ("GPU 0", "ok"),
        ("GPU 1", "look"),
        ("NCCL", "ok"),
    ]


def test_the_checks_of_this_machine_can_be_made() -> None:
    names = [check.name for check in machine.machine_checks()]
    assert names[:3] == ["Python", "torch", "torchvision"]
    assert {"CPU cores", "memory", "disk", "shared memory", "open files", "image formats"} <= set(
        names
    )


def test_a_broken_torch_does_not_hide_the_other_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "check_package", lambda name: Check(name, "problem", "broken"))
    names = [check.name for check in machine.machine_checks()]
    assert "operators" not in names
    assert "disk" in names


def test_the_self_test_passes_here() -> None:
    assert [check.state for check in self_test.self_tests()] == ["ok", "ok", "ok"]


def test_the_self_test_leaves_the_random_numbers_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    self_test.train_one_step()
    assert torch.equal(torch.rand(3), expected)


def test_a_trial_that_fails_is_a_problem_with_its_reason() -> None:
    def fail() -> str:
        raise RuntimeError("no kernel image")

    check = self_test.attempt("try: network", fail)
    assert check == Check("try: network", "problem", "RuntimeError: no kernel image")


@pytest.mark.parametrize(
    ("states", "line"),
    [
        (["ok", "ok"], "This machine is ready."),
        (["ok", "look"], "This machine is ready, with 1 thing to look at above."),
        (["look", "look"], "This machine is ready, with 2 things to look at above."),
        (["look", "problem"], "This machine has a problem. Begin with check 1: do 1"),
        (["problem", "problem"], "This machine has 2 problems. Begin with check 0: do 0"),
    ],
)
def test_the_last_line_says_what_to_do(states: list[str], line: str) -> None:
    checks = [
        Check(f"check {number}", state, f"do {number}")  # type: ignore[arg-type]
        for number, state in enumerate(states)
    ]
    assert verdict(checks, subject="This machine", healthy="is ready") == line


def test_the_machine_is_examined_line_by_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "machine_checks", lambda: [Check("disk", "ok", "large [enough]")])
    monkeypatch.setattr(doctor, "self_tests", lambda: [Check("try: files", "problem", "no")])
    examine()
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.split() == ["ok", "disk", "large", "[enough]"]
    assert second.startswith("problem")
    assert last == "This machine has a problem. Begin with try: files: no"


def test_an_interrupted_run_is_told_how_to_go_on(run: RunDirectory) -> None:
    check = check_called("State", run)
    assert check.state == "look"
    assert check.text == f"interrupted at step 20 of 50. Type: clove resume {run.path}"


def test_a_run_that_holds_its_lock_is_running(run: RunDirectory) -> None:
    with directory.locked(run):
        assert check_called("State", run).text == "running, step 20 of 50"
    assert "interrupted" in check_called("State", run).text


def test_a_run_with_an_exported_backbone_is_finished(run: RunDirectory) -> None:
    run.backbone.write_bytes(b"weights")
    check = check_called("State", run)
    assert check.state == "ok"
    assert "finished" in check.text


def test_an_intact_checkpoint_is_ok(run: RunDirectory) -> None:
    save_checkpoints(run, 10, 20)
    assert check_called("Last checkpoint", run) == Check("Last checkpoint", "ok", "step 20, intact")


def test_a_damaged_checkpoint_falls_back_to_the_one_before(run: RunDirectory) -> None:
    damage(save_checkpoints(run, 10, 20)[1])
    check = check_called("Last checkpoint", run)
    assert check.state == "look"
    assert check.text == "step 20 is damaged; clove resume goes on from step 10"


def test_only_damaged_checkpoints_are_a_problem(run: RunDirectory) -> None:
    for path in save_checkpoints(run, 10, 20):
        damage(path)
    check = check_called("Last checkpoint", run)
    assert check.state == "problem"
    assert "step 20, 10" in check.text


def test_an_interrupted_run_without_checkpoint_starts_over(run: RunDirectory) -> None:
    assert "from the first step" in check_called("Last checkpoint", run).text


def test_the_hints_of_a_run_are_printed(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    save_checkpoints(run, 20)
    with run.metrics.open("a") as file:
        file.writelines(
            json.dumps({"step": step, "feature_std": 0.01}) + "\n" for step in range(21, 41)
        )
    examine(run.path)
    printed = capsys.readouterr().out
    assert "problem  Spread of embeddings" in printed
    last = printed.splitlines()[-1]
    assert "Something is wrong. It shows in the spread of embeddings." in last
    assert "smaller --lr" in last


def test_a_short_run_is_called_short_and_not_healthy(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    save_checkpoints(run, 20)
    run.backbone.write_bytes(b"weights")
    examine(run.path)
    last = capsys.readouterr().out.splitlines()[-1]
    assert "Too short to tell. It was trained for 20 steps" in last
    assert last.endswith(f"clove probe {run.path}")


def test_a_damaged_file_is_told_before_the_verdict(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(save_checkpoints(run, 20)[0])
    examine(run.path)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("This run has a problem. Begin with Last checkpoint")


@pytest.mark.parametrize(("score", "state"), [(0.0, "problem"), (0.3, "ok")])
def test_a_detector_that_finds_nothing_is_a_problem(
    tmp_path: Path, score: float, state: str
) -> None:
    tuned = directory.create(tmp_path / "tuned")
    files.save(protocol("voc-c4", tuned.path, "runs/a"), tuned.config)
    table = ScoreTable("box", "COCO average precision", {"AP": score}, {})
    write_scores(tuned.scores, Scores((table,), images=7))
    assert check_called("Scores", tuned).state == state


def test_few_images_large_batches_and_small_images_are_told(run: RunDirectory) -> None:
    start = {"choices": {"plan": {"images": 3}, "shorter_side": 48}}
    run.provenance.write_text(json.dumps({"starts": [start]}))
    told = " ".join(check.text for check in run_checks(run) if check.name == "Data")
    assert "Only 3 images" in told
    assert "larger than the data" in told
    assert "about 48 pixels on their shorter side, smaller than the views" in told


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run"):
        examine(tmp_path)


@pytest.mark.parametrize("kind", ["pretraining", "finetuning"])
def test_damaged_scores_do_not_stop_the_doctor(
    run: RunDirectory, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run.backbone.write_bytes(b"weights")
    run.probes.write_text("[{")
    if kind == "finetuning":
        run = directory.create(tmp_path / "tuned")
        files.save(protocol("voc-c4", run.path, "runs/a"), run.config)
        run.scores.write_text('{"tables": [3]}')
    examine(run.path)
    last = capsys.readouterr().out.splitlines()[-1]
    assert "json" in last
    assert "clove " in last
