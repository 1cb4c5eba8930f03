"""Configs: complete, strict, the same after a round trip, and free of torch."""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from clove_ssl.bench.config import BenchConfig
from clove_ssl.config import files
from clove_ssl.config.finetuning import LabelledDataConfig
from clove_ssl.config.pretraining import (
    CheckpointConfig,
    DataConfig,
    LoggingConfig,
    OptimizerConfig,
    PretrainConfig,
)
from clove_ssl.config.probing import ProbeConfig, RunProbeConfig
from clove_ssl.config.views import ViewsConfig
from clove_ssl.errors import UserError
from clove_ssl.methods.clove.config import AttentionConfig, CLoVEConfig, LossConfig
from clove_ssl.methods.config import MatchingConfig, ProjectorConfig
from clove_ssl.methods.recipes import all_recipes, recipe
from clove_ssl.registry import METHODS


@pytest.mark.parametrize("name", list(all_recipes()))
def test_a_recipe_survives_its_config_file(name: str, tmp_path: Path) -> None:
    config = recipe(name, Path("run"))
    files.save(config, tmp_path / "config.yaml")
    assert files.load(PretrainConfig, tmp_path / "config.yaml") == config
    method = config.method.name
    assert f"method:\n  name: {method}\n" in (tmp_path / "config.yaml").read_text()


@pytest.mark.parametrize("name", list(all_recipes()))
def test_a_recipe_says_how_to_start_it_and_what_to_expect(name: str) -> None:
    text = all_recipes()[name].__doc__ or ""
    assert "command" in text.lower()
    assert "cost: " in text.lower()
    assert "Expected: " in text


@pytest.mark.parametrize(
    ("line", "change", "message"),
    [
        ("epochs: 200", "epochs: many", "expected int @ config.epochs"),
        ("epochs: 200", "epoch: 200", "epoch"),
        ("kind: ranking", "kind: rankling", "rankling"),
        ("name: clove", "name: glove", "Did you mean 'clove'"),
        ("threshold: 0.7", "threshold: -1", "threshold is -1; expected a number above 0"),
        ("batch_size: 2048", "batch_size: [", "not a YAML file"),
        ("batch_size: 2048", "2048: batch_size\n~: 1", "expected lines like"),
    ],
)
def test_a_wrong_line_of_a_file_is_named(
    tmp_path: Path, line: str, change: str, message: str
) -> None:
    path = tmp_path / "config.yaml"
    files.save(PretrainConfig(out=Path("run")), path)
    assert line in path.read_text()
    path.write_text(path.read_text().replace(line, change))
    with pytest.raises(UserError, match=message) as error:
        files.load(PretrainConfig, path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(("old", "new"), [("true", "always"), ("false", "never")])
def test_runs_that_only_said_whether_they_compile_can_be_read(
    tmp_path: Path, old: str, new: str
) -> None:
    path = tmp_path / "config.yaml"
    files.save(PretrainConfig(out=Path("run")), path)
    lines = path.read_text().splitlines(keepends=True)
    older = [line for line in lines if not line.startswith(("compile:", "activation_memory:"))]
    path.write_text("".join(older) + f"compile: {old}\n")
    assert files.load(PretrainConfig, path) == PretrainConfig(out=Path("run"), compile=new)  # type: ignore[arg-type]


def test_configs_that_differ_only_in_their_folder_share_a_fingerprint() -> None:
    config = PretrainConfig(out=Path("run"))
    assert files.fingerprint(config) == files.fingerprint(PretrainConfig(out=Path("elsewhere")))
    assert files.fingerprint(config) != files.fingerprint(replace(config, seed=1))


def test_every_field_has_help() -> None:
    """Field docstrings are the help text, so a field without one is a field without help."""
    obvious = {"epochs", "device", "name", "role", "size"}
    for cls in config_classes(PretrainConfig(out=Path("run"))):
        for field in fields(cls):
            if is_dataclass(getattr(cls(**required(cls)), field.name)) or field.name in obvious:
                continue
            declares = next(base for base in cls.__mro__ if field.name in base.__annotations__)
            body = inspect.getsource(declares)
            after = body.split(f"\n    {field.name}:")[1].split("\n", 2)[1]
            assert after.strip().startswith('"""'), f"{cls.__name__}.{field.name} has no docstring"


def required(cls: type) -> dict[str, Any]:
    return {"out": Path("run")} if cls is PretrainConfig else {}


def config_classes(config: Any) -> list[type]:
    inner = [getattr(config, field.name) for field in fields(config)]
    return [type(config), *(c for i in inner if is_dataclass(i) for c in config_classes(i))]


@pytest.mark.parametrize(
    "make",
    [
        lambda: ViewsConfig(global_count=0),
        lambda: CLoVEConfig(views=ViewsConfig(global_count=1)),
        lambda: ViewsConfig(global_scale=(1.0, 0.2)),
        lambda: MatchingConfig(threshold=0),
        lambda: LossConfig(top_k=3, drop=3),
        lambda: CheckpointConfig(keep=0),
        lambda: PretrainConfig(out=Path("run"), epochs=0),
        lambda: CLoVEConfig(attention=replace(CLoVEConfig().attention, heads=3)),
        lambda: AttentionConfig(temperature=0.0),
        lambda: ProjectorConfig(out=0),
        lambda: CheckpointConfig(every_epochs=float("nan")),
        lambda: LoggingConfig(every=0),
        lambda: OptimizerConfig(lr=float("nan")),
        lambda: OptimizerConfig(warmup_epochs=-1.0),
        lambda: DataConfig(workers=-1),
        lambda: DataConfig(scenes_count=0),
        lambda: PretrainConfig(out=Path("run"), seed=-1),
        lambda: PretrainConfig(out=Path("run"), seed=10**20),
        lambda: ProbeConfig(backbones=("random:resnet18",), seed=-1),
        lambda: LabelledDataConfig(workers=-1),
        lambda: BenchConfig(steps=0),
    ],
)
def test_impossible_values_are_refused_with_a_remedy(make: Any) -> None:
    with pytest.raises(UserError, match=r"[Gg]ive|[Tt]ry|Change|Leave|Shorten"):
        make()


def test_the_defaults_are_the_published_method() -> None:
    config = PretrainConfig(out=Path("run"))
    method = config.method
    assert isinstance(method, CLoVEConfig)
    assert method.loss_terms() == 14
    assert [spec.size for spec in method.view_specs()] == [224] * 2 + [96] * 6
    assert [spec.blur_probability for spec in method.view_specs()] == [1.0, 0.1] + [0.5] * 6
    assert [spec.solarize_probability for spec in method.view_specs()] == [0.0, 0.2] + [0.0] * 6
    assert config.optimizer.peak_lr(config.batch_size) == 8.0


@pytest.mark.parametrize("data", ["{source: ''}", "{source: photos, more: ['']}"])
def test_an_empty_name_of_data_is_refused(data: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--data photos/"):
        files.parse(PretrainConfig, f"out: run\ndata: {data}", where=tmp_path)


@pytest.mark.parametrize("text", ["", "# nothing\n", "[]", "0", "false"])
def test_a_file_that_says_nothing_is_no_run_of_defaults(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError, match="xpected lines like `epochs: 200`"):
        files.load(PretrainConfig, tmp_path / "config.yaml")


def test_another_name_keeps_what_a_recipe_says_beside_it_but_for_methods_and_tasks() -> None:
    base = recipe("clove-plus-r18-small", Path("run"))
    changes = {"backbone": {"name": "resnet50"}, "optimizer": {"name": "sgd"}}
    changed = files.changed(base, changes, where="here")
    assert changed.backbone == replace(base.backbone, name="resnet50")
    assert changed.optimizer == replace(base.optimizer, name="sgd")
    other = files.changed(base, {"method": {"name": "moco"}}, where="here")
    assert other.method == METHODS.load("moco")()


def test_a_pattern_of_labelled_images_is_found_from_any_folder() -> None:
    probe = RunProbeConfig(data="labelled/{0..3}.tar")
    config = PretrainConfig(out=Path("run"), probe=probe).located()
    assert config.probe.data == str(Path.cwd() / "labelled/{0..3}.tar")
