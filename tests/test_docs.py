"""The documentation is true: commands parse, links lead somewhere, examples run."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from builders.runs.tiny_runs import tiny_config
from PIL import Image

import clove_ssl
from clove_ssl import cli, whole_runs
from clove_ssl.backbones.build import Backbone, build_backbone
from clove_ssl.bench import command as benchmark
from clove_ssl.bench import finetuning as task_benchmark
from clove_ssl.bench.config import BenchConfig
from clove_ssl.command_line import arguments
from clove_ssl.config import files
from clove_ssl.config.finetuning import FinetuneConfig, protocol
from clove_ssl.config.predicting import EvaluateConfig, PredictConfig
from clove_ssl.config.pretraining import BackboneConfig, PretrainConfig
from clove_ssl.config.probing import ProbeConfig
from clove_ssl.config.showing import ReportConfig, ShowConfig, WatchConfig
from clove_ssl.data.sources import open_source
from clove_ssl.doctor import command as doctor
from clove_ssl.exporting import command as exporting
from clove_ssl.exporting import importing
from clove_ssl.finetuning import score as scoring
from clove_ssl.finetuning import seeds as finetuning
from clove_ssl.label_curves import command as labelling
from clove_ssl.methods.recipes import all_recipes, recipe
from clove_ssl.pictures import command as showing
from clove_ssl.predicting import other_data
from clove_ssl.predicting import run as predicting
from clove_ssl.pretraining.choices import plan_run
from clove_ssl.probes import command as probing
from clove_ssl.probes import embed as embedding
from clove_ssl.registry import METHODS, TASKS
from clove_ssl.report import command as reporting
from clove_ssl.report import watch as watching
from clove_ssl.runs import directory
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.study import command as study
from clove_ssl.study.config import StudyRunConfig
from clove_ssl.tasks.own import command as own_data
from clove_ssl.weights.config import ExportConfig, ImportConfig
from clove_ssl.weights.load import load_backbone
from clove_ssl.weights.safetensors_file import save_backbone

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted(DOCS.rglob("*.md"))
PACKAGE = ROOT / "src" / "clove_ssl"


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    """The fenced code of one language, without the indentation of lists."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def inline_code(page: Path) -> list[str]:
    """What stands in single backticks outside fenced blocks."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose)]


def shell_commands(page: Path) -> Iterator[str]:
    """Arguments of every ``clove`` or ``python -m clove_ssl`` in a block of shell code."""
    for block in blocks(page, "bash"):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            found = re.search(r"(?:^|/bin/|\s)(?:clove|-m clove_ssl) (?=[a-z])(.*)", line)
            if found:
                # A command inside bash -c '...' ends with the quote of the outer one.
                yield found[1].removesuffix("'") if found[1].count("'") % 2 else found[1]


def commands_in_prose(page: Path) -> Iterator[str]:
    for code in inline_code(page):
        found = re.match(r"(?:\.venv/bin/)?clove (.+)", code)
        if found:
            yield found[1]


def shown_commands() -> list[Any]:
    found = [(page, command) for page in PAGES for command in shell_commands(page)]
    # A bare verb in a sentence stands for itself, not for a complete command.
    prose = [(page, each) for page in PAGES for each in commands_in_prose(page) if " " in each]
    return [pytest.param(text, id=f"{page_name(page)}: {text}") for page, text in found + prose]


@pytest.fixture
def only_parse(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace what the verbs do by a note that they were reached."""
    reached: list[str] = []

    def noting(name: str) -> Callable[..., Any]:
        def note(*args: Any, **kwargs: Any) -> RunDirectory:
            reached.append(name)
            return RunDirectory(Path("RUN"))

        return note

    for module, name in (
        (whole_runs, "begin"),
        (whole_runs, "resume"),
        (finetuning, "finetune"),
        (labelling, "compare_labels"),
        (scoring, "score_run"),
        (own_data, "show_data"),
        (probing, "probe_backbones"),
        (embedding, "write_embeddings"),
        (importing, "import_weights"),
        (exporting, "export_backbone"),
        (predicting, "predict_images"),
        (other_data, "evaluate_on"),
        (directory, "find"),
        (showing, "show"),
        (reporting, "report_runs"),
        (reporting, "conclude"),
        (watching, "watch"),
        (doctor, "examine"),
        (benchmark, "run_bench"),
        (task_benchmark, "run_task_bench"),
        (study, "run_study"),
    ):
        monkeypatch.setattr(module, name, noting(name))
    demo = recipe("clove-demo", Path("unused"))
    mine = protocol("detect", Path("unused"), "random")
    monkeypatch.setattr(arguments, "choose_pretraining", lambda *_, **__: demo)
    monkeypatch.setattr(
        files, "load", lambda cls, path, **_: mine if cls is FinetuneConfig else demo
    )
    monkeypatch.setattr(files, "read_values", lambda path: {})
    return reached


@pytest.mark.parametrize("command", shown_commands())
def test_a_shown_command_is_understood(command: str, only_parse: list[str]) -> None:
    arguments = shlex.split(command, comments=True)
    if asked := {"--help", "--help-all"} & set(arguments):
        arguments = [word for word in arguments if word not in asked]
        arguments += ["--out", "RUN"] if arguments[0] in ("pretrain", "finetune") else []
        arguments += ["--backbone", "random"] if arguments[0] == "finetune" else []
    assert cli.main(arguments) == 0
    assert only_parse or arguments[0] in ("list", "--print-completion")


def test_verbs_named_in_sentences_exist() -> None:
    named = {command.split()[0] for page in PAGES for command in commands_in_prose(page)}
    assert named - {"--help", "<verb>", "--print-completion"} <= set(cli.VERBS)
    assert {"doctor", "probe"} <= named  # or the search finds nothing


RECIPE_NAME = r"(?<![\w./-])(?:clove-[a-z0-9-]+|[a-z0-9]+-r\d+(?:-[a-z0-9]+)?)"


def test_recipes_named_in_the_docs_exist() -> None:
    named = {word for page in PAGES for word in re.findall(RECIPE_NAME, page.read_text())}
    assert named - {"clove-ssl", "clove-index", "clove-plus"} <= set(all_recipes())
    assert set(all_recipes()) <= named


def option_names(config: Any, prefix: str = "") -> Iterator[str]:
    """Every option of a config, with its other name and the negative form of flags."""
    for each in fields(config):
        value = getattr(config, each.name)
        if is_dataclass(value):
            yield from option_names(value, f"{prefix}{each.name}.")
        else:
            yield f"--{prefix}{each.name}".replace("_", "-")
            yield from re.findall(r"aliases=\[\W*(--[\w.-]+)", str(each.type))
            yield f"--{prefix}no-{each.name}".replace("_", "-")


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_options_named_in_sentences_exist(page: Path) -> None:
    known = {*option_names(ProbeConfig(backbones=())), "--data", "--config", "--help"}
    known |= {"--help-all", "--minutes", "--overwrite", "--print-completion", "--version"}
    for method in METHODS.names():
        known |= {*option_names(PretrainConfig(out=Path("RUN"), method=METHODS.load(method)()))}
    for task in TASKS.names():
        known |= {*option_names(protocol(task, Path("RUN"), "random"))}
    known |= {*option_names(ImportConfig(file=Path("FILE"), out=Path("OUT")))}
    known |= {*option_names(ExportConfig(source=Path("RUN"), to="onnx"))}
    known |= {*option_names(ShowConfig(what="views", run=Path("RUN")))}
    known |= {*option_names(ReportConfig(runs=())), *option_names(WatchConfig(runs=()))}
    known |= {*option_names(StudyRunConfig(study="smoke", out=Path("STUDY")))}
    known |= {*option_names(BenchConfig()), "--backbones", "--fractions", "--figure"}
    known |= {*option_names(PredictConfig(model=Path("RUN"), images=(), out=Path("OUT")))}
    known |= {*option_names(EvaluateConfig(model=Path("RUN")))}
    elsewhere = {"--update-recorded", "--shm-size", "--ipc", "--signal", "--rdzv-endpoint"}
    elsewhere |= {"--gpus-per-task", "--gpus-per-node"}
    named = {
        re.split(r"[ =]", code)[0]
        for text in inline_code(page)
        for code in re.findall(r"--[a-z][^`]*", text)
    }
    assert named <= known | elsewhere


def test_config_fields_named_in_sentences_exist() -> None:
    known = {name.removeprefix("--") for name in option_names(PretrainConfig(out=Path("RUN")))}
    sections = ("method.", "backbone.", "optimizer.", "data.", "checkpoints.", "logging.")
    named = [
        code
        for code in inline_code(DOCS / "reproducing.md")
        if code.startswith(sections) and code != "data.md"
    ]
    assert len(named) > 50
    for code in named:
        assert any(name.startswith(code.replace("_", "-")) for name in known), code


def test_every_difference_between_paper_and_release_has_its_row() -> None:
    rows = re.findall(r"^\| (\d+) \|", (DOCS / "reproducing.md").read_text(), re.MULTILINE)
    assert [int(row) for row in rows] == list(range(1, 38))


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_relative_links_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    local = [target for target in targets if "://" not in target]
    missing = [target for target in local if not (page.parent / target).is_file()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_source_files_named_in_sentences_exist(page: Path) -> None:
    bases = (ROOT, PACKAGE, page.parent)
    for code in inline_code(page):
        if re.fullmatch(r"(?!dense_twin|runs/\w+/|export/)[\w/]+/[\w/]+\.(py|md|json)", code):
            assert any((base / code).is_file() for base in bases), code


def load_script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_options_is_up_to_date() -> None:
    script = load_script(DOCS / "generate_config_page.py")
    assert script.PAGE.read_text() == script.render(), "run: python docs/generate_config_page.py"


def test_the_page_of_options_explains_every_option() -> None:
    page = (DOCS / "config.md").read_text()
    options = option_names(PretrainConfig(out=Path("RUN")))
    positive = [name for name in options if not re.match(r"--(.*\.)?no-", name)]
    assert "--workers" in positive  # another name of --data.workers
    assert all(f"`{name}`" in page for name in positive)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, for examples with relative paths."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def export(architecture: str, path: Path) -> Backbone:
    torch.manual_seed(0)
    backbone = build_backbone(BackboneConfig(name=architecture, zero_init_last=False))
    save_backbone(backbone, path, {"method": "clove", "config_hash": "0"})
    return backbone


@pytest.mark.parametrize(
    ("number", "architecture"), [(0, "resnet50"), (1, "resnet18")], ids=["resnet50", "resnet18"]
)
def test_a_detector_starts_from_the_backbone(
    elsewhere: Path, number: int, architecture: str
) -> None:
    backbone = export(architecture, elsewhere / "runs/photos/export/backbone.safetensors")
    names: dict[str, Any] = {}
    exec(blocks(DOCS / "getting-started.md", "python")[number], names)
    body = names["detector"].backbone.body
    assert all(parameter.requires_grad for parameter in body.parameters())
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = backbone.eval().features(images)
        assert torch.equal(body.eval()(images)["3"], expected)


def save_photos(folder: Path, count: int) -> None:
    folder.mkdir()
    for number in range(count):
        Image.effect_noise((80, 64), 60 + number).convert("RGB").save(folder / f"{number}.png")


def test_the_python_api_trains_as_shown(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_photos(elsewhere / "photos", 20)
    monkeypatch.setattr(clove_ssl, "recipe", lambda name, out: tiny_config(out))
    exec(blocks(DOCS / "getting-started.md", "python")[2], {})
    assert "True 6" in capsys.readouterr().out
    assert f"source: {elsewhere / 'photos'}" in (elsewhere / "runs/api/config.yaml").read_text()


def test_the_parts_work_alone_as_shown() -> None:
    names: dict[str, Any] = {}
    exec(blocks(DOCS / "getting-started.md", "python")[3], names)
    assert names["matches"].shape == (1, 49, 49)
    assert names["matches"].any()
    assert 94 < names["loss"].item() < 106


def test_runs_are_compared_as_shown(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        export("resnet18", elsewhere / "runs" / name / "export/backbone.safetensors")
    exec(blocks(DOCS / "reproducing.md", "python")[0], {})
    assert "True True" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform != "linux", reason="uses GNU tools")
def test_shards_are_made_as_shown(elsewhere: Path) -> None:
    (elsewhere / "photos" / "more of them").mkdir(parents=True)
    for number in range(1203):
        (elsewhere / "photos/more of them" / f"{number}.jpg").write_bytes(b"%d" % number)
    recipe_text = next(text for text in blocks(DOCS / "data.md", "bash") if "split" in text)
    subprocess.run(["bash", "-euc", recipe_text], check=True)
    shards = open_source(recipe("clove-demo", elsewhere).data.__class__(source="shards/*.tar"))
    assert sorted(int(shards.read(i)) for i in range(len(shards))) == list(range(1203))
    assert len(list(elsewhere.glob("shards/*.tar"))) == 2


def test_the_table_of_batches_is_what_a_run_plans() -> None:
    text = (DOCS / "distributed.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", text, re.MULTILINE)
    assert len(rows) >= 5
    for processes, micro_batch, share, passes, together in (map(int, row) for row in rows):
        config = PretrainConfig(out=Path("RUN"), micro_batch=micro_batch)
        plan = plan_run(config, images=10_000, processes=processes, device_type="cuda")
        assert config.share_per_process(processes) == share
        assert plan.micro_batches == passes
        assert plan.processes * plan.micro_batch == together


def imports_at_the_top(path: Path) -> set[str]:
    """Rooms that a module imports whenever it is imported itself."""
    rooms = set()
    for node in ast.parse(path.read_text()).body:
        if (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").partition(".")[0] == "clove_ssl"
        ):
            names = [alias.name for alias in node.names]
            whole = [node.module] if node.module != "clove_ssl" else [f".{name}" for name in names]
            rooms |= {str(name).split(".")[1] for name in whole}
    return rooms - {"__version__"}


def is_door(path: Path) -> bool:
    """Modules that only the command line calls, and that may import every room."""
    return path.name == "command.py" or path == PACKAGE / "report" / "watch.py"


def test_rooms_import_only_what_the_architecture_allows() -> None:
    table = re.findall(
        r"^\| `(\w+)` \|[^|]*\|([^|]*)\|$", (DOCS / "architecture.md").read_text(), re.M
    )
    allowed = {room: set(re.findall(r"`(\w+)`", cell)) for room, cell in table}
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).with_suffix("").parts[0]
        if not room.startswith("__") and not is_door(path):
            forbidden = imports_at_the_top(path) - allowed[room] - {room}
            assert not forbidden, f"{path} imports {forbidden}"


def test_imports_of_rooms_go_in_no_circle() -> None:
    order = re.findall(r"^\| `(\w+)` \|", (DOCS / "architecture.md").read_text(), re.M)
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).with_suffix("").parts[0]
        if not room.startswith("__") and not is_door(path):
            upwards = {
                each for each in imports_at_the_top(path) if order.index(each) < order.index(room)
            }
            assert not upwards, f"{path} imports {upwards}, which stand above it in the table"


def test_no_folder_has_more_than_twenty_files() -> None:
    for top in (PACKAGE, ROOT / "tests"):
        for folder in (top, *(path for path in top.rglob("*") if path.is_dir())):
            assert len(list(folder.glob("*.py"))) <= 20, folder


def files_of_the_walk() -> tuple[str, list[str]]:
    """The walk of an image in the architecture, and the files that its tables name."""
    page = (DOCS / "architecture.md").read_text()
    walk = page.split("## The walk of an image")[1].split("\n## ")[0]
    rows = "\n".join(line for line in walk.splitlines() if line.startswith("|"))
    return walk, re.findall(r"`([a-z_0-9/]+\.py)`", rows)


def test_the_walk_of_an_image_has_forty_files_at_most() -> None:
    walk, named = files_of_the_walk()
    assert len(named) == len(set(named)), "a file is opened once"
    assert f"{len(named)} in all" in walk
    assert len(named) <= 40
    assert not [name for name in named if not (PACKAGE / name).is_file()]


def test_every_file_of_the_walk_is_imported_by_another_one() -> None:
    _, named = files_of_the_walk()
    text = "\n".join((PACKAGE / name).read_text() for name in named)
    # The verb begins the walk; a recipe is found by its folder, not imported.
    for name in {*named} - {"cli.py", "methods/clove/recipes.py"}:
        *folders, module = name.removesuffix(".py").split("/")
        room = ".".join(["clove_ssl", *folders])
        imported = rf"from {room}\.{module} import|from {room} import [^\n]*\b{module}\b"
        assert re.search(imported, text), name


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    named = {
        code for code in inline_code(page) if re.fullmatch(r"[a-z_0-9]+(/[a-z_0-9]+)+\.py", code)
    }
    places = (PACKAGE, ROOT, ROOT / "tests", *ROOT.glob("examples/*/src"))
    missing = {name for name in named if not any((place / name).is_file() for place in places)}
    assert page.name == "CHANGELOG.md" or not missing


@pytest.fixture
def dense_twin(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The example of architecture.md, installed as a plug-in."""
    page = DOCS / "architecture.md"
    folder = elsewhere / "dense_twin"
    folder.mkdir()
    for name, code in zip(("config", "method"), blocks(page, "python"), strict=True):
        (folder / f"{name}.py").write_text(code)
    (elsewhere / "twin.yaml").write_text(blocks(page, "yaml")[0])
    entry = re.search(r'^(\S+) = "(dense_twin.*)"$', blocks(page, "toml")[0], re.MULTILINE)
    assert entry is not None
    point = EntryPoint(name=entry[1], value=entry[2], group=METHODS.group)
    monkeypatch.setattr(METHODS, "_plugins", lambda: (point,))
    monkeypatch.syspath_prepend(elsewhere)
    yield elsewhere
    for module in [name for name in sys.modules if name.startswith("dense_twin")]:
        del sys.modules[module]


@pytest.mark.usefixtures("unmeasured")  # those of an installed plug-in are, elsewhere
def test_the_example_of_a_method_trains_and_resumes(dense_twin: Path) -> None:
    save_photos(dense_twin / "photos", 12)
    command = next(shell_commands(DOCS / "architecture.md"))
    small = (
        "--backbone.name resnet18 --backbone.stage c4 --batch-size 4 --device cpu --data.workers 0"
    )
    small += " --method.views.global-size 64 --steps 2 --optimizer.warmup-epochs 0"
    assert cli.main(shlex.split(f"{command} {small}")) == 0
    run = dense_twin / "runs/twin"
    assert "name: dense-twin\n" in (run / "config.yaml").read_text()
    assert "channels: 64\n" in (run / "config.yaml").read_text()
    assert cli.main(["resume", str(run)]) == 0
    assert load_backbone(run).name == "resnet18"
