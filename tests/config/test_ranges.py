"""Every number of every config has a range, and what lies outside is refused in plain words."""

from __future__ import annotations

import math
import pickle
import pkgutil
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest

import clove_ssl
from clove_ssl import cli
from clove_ssl.config import files
from clove_ssl.config.bases import MethodConfig
from clove_ssl.config.finetuning import protocol
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.config.ranges import OutOfRange, Range, Ranged, Rule, Share, as_typed, rules
from clove_ssl.config.views import ViewsConfig
from clove_ssl.errors import UserError
from clove_ssl.methods.recipes import all_recipes
from clove_ssl.registry import METHODS, TASKS


def config_classes() -> list[type[Any]]:
    """All dataclasses of the modules that say what a user can set."""
    found = []
    for module in pkgutil.walk_packages(clove_ssl.__path__, "clove_ssl."):
        name = module.name
        if name.startswith("clove_ssl.config.") or name.endswith((".config", ".cli")):
            values = vars(import_module(name)).values()
            found += [each for each in values if isinstance(each, type) and is_dataclass(each)]
    own = {cls for cls in found if cls.__module__ != "clove_ssl.config.ranges"}
    return sorted(own, key=lambda cls: cls.__qualname__)


CLASSES = config_classes()
RANGED = [cls for cls in CLASSES if rules(cls)]


def numbers_in(kind: Any) -> bool:
    """Whether a type holds numbers, however deep; a choice of given numbers is none."""
    if kind in (int, float):
        return True
    return get_origin(kind) is not Literal and any(map(numbers_in, get_args(kind)))


def outside(rule: Rule) -> Iterator[Any]:
    """Values just outside a rule."""
    step = 1 if rule.whole else 1e-9 * max(1.0, abs(rule.range.high))
    low = rule.range.low if rule.range.above else rule.range.low - step
    high = rule.range.high if rule.range.below else rule.range.high + step
    wrong: list[Any] = [low, high, math.nan, math.inf, -math.inf, "x"]
    if rule.whole:
        wrong += [rule.range.low + 0.5, 10**30]
    if rule.length is None:
        yield from wrong
        return
    good = (rule.range.high / 2 if not rule.whole else int(rule.range.high),)
    for value in wrong:
        yield (value, *good * ((rule.length or 2) - 1))
    if rule.length:
        yield ()
        yield good * (rule.length + 1)
    if rule.several.least:
        yield ()
    if rule.several.unlike:
        yield good * 2
    if rule.several.rising:
        yield (good[0], *[rule.range.low + (1 if rule.whole else 1e-3)] * (rule.length or 2))


def made(cls: type[Any], **values: Any) -> Any:
    """A config with its required fields."""
    stand_ins = {"label": "a", "recipe": "clove-demo", "study": "smoke", "what": "views"}
    needed = [
        each.name
        for each in fields(cls)
        if each.default is MISSING and each.default_factory is MISSING and each.name not in values
    ]
    given = {name: stand_ins.get(name, _of_type(cls, name)) for name in needed}
    if cls.__name__ == "PretrainingEntry":
        given["recipe"] = "clove-demo"
    return cls(**given, **values)


def _of_type(cls: type[Any], name: str) -> Any:
    rule = rules(cls).get(name)
    if rule is None:
        return Path("x")
    return rule.range.high if rule.length is None else (rule.range.high,) * rule.length


def test_the_walk_finds_the_configs_of_all_verbs() -> None:
    names = {cls.__name__ for cls in CLASSES}
    assert {"PretrainConfig", "FinetuneConfig", "ProbeConfig", "EmbedConfig"} <= names
    assert {"BenchConfig", "StudyConfig", "ShowConfig", "ExportConfig", "ResumeArguments"} <= names
    assert {METHODS.load(name) for name in METHODS.names()} - {*CLASSES} <= plugged_in()
    assert {TASKS.load(name) for name in TASKS.names()} <= {*CLASSES}


def plugged_in() -> set[type[MethodConfig]]:
    return {METHODS.load(point.name) for point in METHODS._plugins()}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_number_has_a_range(cls: type[Any]) -> None:
    hints = get_type_hints(cls)
    numeric = {each.name for each in fields(cls) if numbers_in(hints[each.name])}
    assert numeric == {*rules(cls)}
    assert not numeric or issubclass(cls, Ranged), "its ranges would not be looked at"
    assert all(math.isfinite(rule.range.high) for rule in rules(cls).values())


@pytest.mark.parametrize("cls", RANGED, ids=lambda cls: cls.__name__)
def test_what_lies_outside_a_range_is_refused_by_its_name(cls: type[Any]) -> None:
    for name, rule in rules(cls).items():
        told = rf"{cls.__name__}\.{name} is .*; expected .*Leave"
        for value in outside(rule):
            with pytest.raises(OutOfRange, match=told):
                made(cls, **{name: value})


@pytest.mark.parametrize("cls", RANGED, ids=lambda cls: cls.__name__)
def test_the_ends_of_a_range_belong_to_it_as_it_says(cls: type[Any]) -> None:
    for rule in rules(cls).values():
        low = rule.range.low + (1e-6 if rule.range.above else 0)
        high = rule.range.high - (1e-6 if rule.range.below else 0)
        for end in (low, high):
            assert rule.allows(end if rule.length is None else (end,) * (rule.length or 1))
        assert rule.optional == rule.allows(None)


def test_recipes_and_protocols_are_within_their_ranges() -> None:
    for make in all_recipes().values():
        make(Path("RUN"))
    for task in TASKS.names():
        protocol(task, Path("RUN"), "random")


REFUSED = {
    "pretrain clove-demo": {
        "batch-size": ("0", "-3", str(10**18)),
        "steps": ("0", str(10**30)),
        "optimizer.lr": ("1e300", "nan", "inf", "0"),
        "optimizer.momentum": ("3", "1"),
        "data.workers": ("-1", "100000"),
        "data.scenes-count": ("0", str(10**9)),
        "data.scenes-size": ("0", "-3", "31", str(10**9)),
        "data.max-bad": ("-1", "2"),
        "method.views.local-count": ("-1",),
        "method.views.flip-probability": ("5",),
        "method.views.global-size": ("0", "-3", str(10**9)),
        "method.views.global-blur": ("", "2"),
        "method.views.global-scale": ("0 1", "1 0.2", "0.5 nan"),
        "method.teacher.momentum": ("7",),
        "method.loss.queue-size": (str(10**15),),
        "probe.size": ("8",),
        "seed": ("-1", str(2**63)),
    },
    "finetune voc-semantic": {
        "micro-batch": ("0", "-1"),
        "fraction": ("0", "2"),
        "data.scenes-train": ("0", str(10**9)),
        "solver.momentum": ("-1", "1", "nan"),
        "solver.steps": ("-1", "9 3"),
        "task.crop": ("0", str(10**9)),
        "task.scales": ("0 1", "2 1", "1 inf", "nan 1"),
    },
    "finetune voc-c4": {
        "task.detector.box.convs": ("-1",),
        "task.detector.frozen-stages": ("-1", "6"),
        "task.detector.keypoint.convs": ("-1",),
        "task.detector.mask.convs": ("-1",),
        "task.detector.proposals.anchor-sizes": ("", "0", "32 -64", "inf"),
        "task.train-sides": ("", "0", "480 -1"),
    },
    "finetune coco-densepose": {"task.surface-head.overlap-above": ("-1", "1", "nan")},
    "embed nowhere --data scenes": {"size": ("8",), "batch-size": ("0",)},
    "probe random:resnet18": {"size": ("0",), "train-images": ("1",), "seed": ("-1",)},
    "bench": {"batch": ("0", str(10**18)), "cores": ("0",), "activation-memory": ("0", "2")},
    "study smoke": {"iterations": ("0",), "gpus-per-cell": ("0",), "seeds": ("-1",)},
    "show views nowhere": {"at": ("0.5 2",), "count": ("0",), "enlarge": ("99",)},
    "watch nowhere": {"port": ("-1", "65536")},
    "resume nowhere": {"micro-batch": ("0",)},
}


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [
        (command, f"--{option}", value)
        for command, options in REFUSED.items()
        for option, values in options.items()
        for value in values
    ],
)
def test_the_command_line_names_the_option_as_it_was_typed(
    command: str, option: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    place = [] if command.startswith(("show", "watch", "resume", "bench", "probe")) else ["--out"]
    backbone = ["--backbone", "nowhere"] if command.startswith("finetune") else []
    where = [*place, *[str(out) for _ in place], *backbone]
    assert cli.main([*command.split(), *where, option, *value.split()]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"clove: {option} is ")
    assert "expected" in told
    assert "Leave it out" in told
    assert not out.exists()


def test_of_two_options_that_end_alike_the_one_with_the_value_is_named() -> None:
    with pytest.raises(OutOfRange) as error:
        replace(ViewsConfig(), local_size=-3)
    args = ["--method.a.local-size", "4", "--method.b.local_size=-3"]
    assert as_typed(error.value, args).startswith("--method.b.local_size is -3")
    assert as_typed(error.value, []).startswith("ViewsConfig.local_size is -3")
    assert as_typed(UserError("other"), args) == "other"


def test_a_file_names_the_place_of_a_number_outside_its_range(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("out: x\nmethod: {name: clove, views: {local_count: -1}}\n")
    with pytest.raises(UserError, match=r"(?s)local_count is -1; expected .*config\.method\.views"):
        files.load(PretrainConfig, path)


@dataclass(frozen=True, kw_only=True)
class PluggedIn(MethodConfig):
    """A method of somebody else, with a check of its own that calls no other."""

    share: Share = 0.5
    other: int = 3  # no range stated, none checked

    def __post_init__(self) -> None:
        if self.other == self.share:
            raise UserError("both are the same")


def test_a_plug_in_states_ranges_in_the_same_way() -> None:
    with pytest.raises(OutOfRange, match=r"PluggedIn\.share is 2; expected a number from 0 to 1"):
        PluggedIn(share=2, other=2)
    with pytest.raises(UserError, match="the same"):
        PluggedIn(share=1, other=1)
    assert PluggedIn(other=-1).other == -1


def test_numbers_of_numpy_are_written_as_they_are() -> None:
    views = ViewsConfig(global_size=np.int64(64), global_scale=(np.float64(0.25), np.float32(1)))
    assert files.to_yaml(views) == files.to_yaml(
        ViewsConfig(global_size=64, global_scale=(0.25, 1.0))
    )
    for value in (True, np.True_):  # which a file would not give back
        with pytest.raises(UserError, match="expected a whole number"):
            ViewsConfig(global_size=value)


def test_numbers_of_numpy_are_numbers() -> None:
    assert ViewsConfig(global_size=np.int64(64), flip_probability=np.float32(0.5)).global_size == 64
    with pytest.raises(OutOfRange):
        ViewsConfig(global_size=np.float64(64.0))


def test_an_error_survives_its_way_between_processes() -> None:
    with pytest.raises(OutOfRange) as error:
        ViewsConfig(global_size=0)
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        (Range(0, 1), "from 0 to 1"),
        (Range(0, 1, above=True), "above 0, up to 1"),
        (Range(0, 1, below=True), "from 0 to below 1"),
        (Range(1, 2**20), "from 1 to 1,048,576"),
    ],
)
def test_a_range_reads_as_a_sentence(stated: Range, words: str) -> None:
    assert str(stated) == words
