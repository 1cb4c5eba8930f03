"""Ours beside the paper's: figures, marks, labels of other settings, and every format."""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from builders.runs.measured_studies import finish_finetuning, finish_pretraining, finish_probe

from clove_ssl.console import Console
from clove_ssl.errors import UserError
from clove_ssl.study.budget_curves import open_beside
from clove_ssl.study.command import report_study
from clove_ssl.study.comparing import StudyComparison
from clove_ssl.study.config import BudgetConfig, FinetuningEntry, StudyConfig, StudyDataConfig
from clove_ssl.study.paper_tables import IMAGENET_IMAGES, PAPER_TABLES, PaperTable
from clove_ssl.study.plan import StudyPlan, make_plan, save_study
from clove_ssl.study.report import paint_bars
from clove_ssl.study.results import pretraining_rows
from clove_ssl.study.studies import paper_ablations, paper_main, quick
from clove_ssl.study.tables import (
    OurScore,
    Pair,
    StudyRow,
    StudyTable,
    csv_text,
    latex,
    markdown,
    run_cells,
)

VOC = {"voc_AP": 0.6, "voc_AP50": 0.84, "voc_AP75": 0.67}


@pytest.fixture
def paper(data_folder: Path) -> str:
    path = data_folder.parent / "paper/clove.tex"
    if not path.is_file():
        pytest.skip(f"no paper in {path}")
    return path.read_text()


@pytest.mark.parametrize("table", PAPER_TABLES, ids=lambda table: table.label)
def test_the_papers_figures_are_those_of_its_source(table: PaperTable, paper: str) -> None:
    (body,) = (
        found
        for found in re.findall(r"\\begin\{table\*?\}.*?\\end\{table\*?\}", paper, re.DOTALL)
        if f"\\label{{{table.label}}}" in found
    )
    printed = list(printed_rows(body))
    if len(table.rows[0].values) == 1:  # T_pos is printed as one line
        assert [row.values[0] for row in table.rows] == printed[-1]
        return
    ours = [
        ([row.epochs] if has_epochs(table, row.epochs) else []) + [*row.values]
        for row in table.rows
    ]
    assert ours == printed


def has_epochs(table: PaperTable, epochs: int | None) -> bool:
    return not table.is_ablation and epochs is not None


def printed_rows(body: str) -> Iterator[list[float]]:
    """The numbers of every line below the heading."""
    for line in body.partition(r"\midrule")[2].split(r"\\"):
        text = re.sub(r"\\cite\w*\{[^}]*\}|\\(?:bfseries|midrule|bottomrule)", "", line)
        cells = [re.sub(r"\\uline\{([^}]*)\}", r"\1", cell) for cell in text.split("&")[1:]]
        numbers = [float(cell) for cell in map(str.strip, cells) if re.fullmatch(r"[\d.]+", cell)]
        if numbers:
            yield numbers


def voc_study(study: StudyConfig, *, seeds: tuple[int, ...] = (0, 1)) -> StudyConfig:
    task = FinetuningEntry(label="voc-c4", task="voc-c4", seeds=seeds)
    data = replace(study.data, labelled={"voc": "VOCdevkit"})
    return replace(study, finetunings=(task,), data=data)


def finish(
    plan: StudyPlan, label: str, values: dict[tuple[int, int], float], *, images: int, test: int
) -> None:
    """All cells of a label, with an AP for every pair of seeds."""
    for cell in plan.cells:
        if cell.entry.label != label:
            continue
        if cell.kind == "pretrain":
            finish_pretraining(plan, cell, images=images)
        elif cell.kind == "finetune" and (cell.seed, cell.finetuning_seed) in values:
            figures = {**VOC, "voc_AP": values[cell.seed, cell.finetuning_seed]}
            finish_finetuning(plan, cell, figures, images=test)


def row_of(table: StudyTable, name: str) -> StudyRow:
    return next(row for row in table.rows if name in row.name)


def test_a_faithful_run_stands_beside_the_papers_row_without_a_label(tmp_path: Path) -> None:
    plan = make_plan(voc_study(paper_main()), tmp_path)
    values = {(0, 0): 0.598, (0, 1): 0.602}
    finish(plan, "clove-200", values, images=IMAGENET_IMAGES, test=4952)
    (table,) = StudyComparison(plan).tables()
    assert table.has_paper
    assert "tab:voc-eval" in table.note
    row = row_of(table, "(clove-200)")
    assert row.departures == ()
    assert row.pairs[0].paper == 60.1
    ours = row.pairs[0].ours
    assert ours is not None
    assert ours.shown() == "60.0 ± 0.3"
    assert (row.count, ours.basis, ours.differs) == ("1 x 2", "fine-tuning", False)
    assert row.budget.startswith("125,113 steps of 2,048 (200 epochs); 24,000 steps of 16")
    assert row.data == "ImageNet-1k, 1,281,167 images; tested on voc, 4,952 images"


def test_a_difference_beyond_two_standard_errors_is_marked(tmp_path: Path) -> None:
    plan = make_plan(voc_study(paper_main()), tmp_path)
    values = {(0, 0): 0.580, (0, 1): 0.581}
    finish(plan, "clove-200", values, images=IMAGENET_IMAGES, test=4952)
    (table,) = StudyComparison(plan).tables()
    ours = row_of(table, "(clove-200)").pairs[0].ours
    assert ours is not None
    assert ours.differs
    assert ours.shown().endswith("*")
    single = make_plan(voc_study(paper_main(), seeds=(0,)), tmp_path / "single")
    finish(single, "clove-200", {(0, 0): 0.1}, images=IMAGENET_IMAGES, test=4952)
    alone = row_of(StudyComparison(single).tables()[0], "(clove-200)").pairs[0].ours
    assert alone is not None
    assert alone.shown() == "10.0"  # without a spread nothing can be said


def test_another_budget_network_or_data_is_told_in_the_row(tmp_path: Path) -> None:
    study = voc_study(quick())
    task = replace(study.finetunings[0], changes=quick().finetunings[0].changes)
    data = StudyDataConfig(labelled={"voc": "VOCdevkit"}, pretrain="some/photos")
    plan = make_plan(replace(study, finetunings=(task,), data=data, probes=()), tmp_path)
    for cell in plan.cells:
        if cell.kind == "timing":
            run = plan.folder.run(cell.name)
            run.path.mkdir(parents=True)
            run.scores.write_text(
                '{"seconds_per_step": 0.1, "data_wait": 0, "timed_steps": 20, "device": "x"}'
            )
    finish(plan, "clove", {(0, 0): 0.3, (1, 0): 0.32}, images=13_301, test=450)
    (table,) = StudyComparison(plan).tables()
    row = row_of(table, "(clove)")
    told = "; ".join(row.departures)
    for part in (
        "resnet18 instead of resnet50",
        "pre-trained on 13,301 images instead of 1,281,167",
        "epochs instead of 200",
        "600 steps instead of 24,000",
        "bf16 instead of fp32",
        "task.longest, task.test_side, task.train_sides, warmup_iterations",
        "tested on 450 images instead of 4,952",
    ):
        assert part in told
    assert told in markdown([table], [], [], title="t")
    assert row.budget.startswith("120 s: 1,200 steps of 256 (23.1 epochs)")
    assert row.data.startswith("photos, 13,301 images")


def test_methods_that_the_paper_lacks_and_rows_that_we_lack_are_both_there(tmp_path: Path) -> None:
    plan = make_plan(voc_study(paper_main()), tmp_path)
    finish(plan, "byol", {(0, 0): 0.5, (0, 1): 0.5}, images=IMAGENET_IMAGES, test=4952)
    (table,) = StudyComparison(plan).tables()
    byol, inscon = row_of(table, "byol"), row_of(table, "InsCon")
    assert byol.pairs[0].paper is None
    assert byol.pairs[0].ours is not None
    assert [pair.paper for pair in inscon.pairs] == [59.1, 83.6, 66.6]
    assert all(pair.ours is None for pair in inscon.pairs)


def test_ablations_fill_four_tables_and_share_their_default(tmp_path: Path) -> None:
    plan = make_plan(voc_study(paper_ablations()), tmp_path)
    for label, value in (("clove", 0.58), ("inter", 0.57)):
        values = {(0, 0): value, (0, 1): value + 0.01}
        finish(plan, label, values, images=IMAGENET_IMAGES, test=4952)
    comparison = StudyComparison(plan)
    tables = comparison.tables()
    assert [len(table.rows) for table in tables] == [4, 2, 3, 5]
    for table in tables:
        assert row_of(table, "(clove)").pairs[0].ours is not None
    assert row_of(tables[2], "(inter)").pairs[0].paper == 57.4
    (paired,) = comparison.paired()
    assert paired.method == "clove - inter"
    assert paired.difference == pytest.approx(1.0)
    assert paired.least is None  # of one pre-training each, nobody knows the spread
    assert comparison.unmeasured() == []


def test_another_measure_never_stands_beside_the_papers_figures(tmp_path: Path) -> None:
    study = replace(paper_ablations(), finetunings=(), probes=quick().probes)
    study = replace(study, data=replace(study.data, labelled={"voc": "VOCdevkit"}))
    plan = make_plan(study, tmp_path)
    for cell in plan.cells:
        if cell.kind == "probe" and cell.entry.label in ("clove", "inter"):
            finish_probe(plan, cell, {"retrieval": 0.2, "segmentation": 0.4})
    tables = StudyComparison(plan).tables()
    assert len(tables) == 4
    for table in tables:
        assert not table.has_paper
        assert all(pair.paper is None for row in table.rows for pair in row.pairs)
        assert table.headings == ("linear mIoU", "k-NN mIoU")
        assert "cannot be compared with these" in table.note


def test_a_study_without_a_single_result_still_has_its_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = paper_main()
    names = {name: name for name in ("voc", "coco", "lvis", "cityscapes")}
    study = replace(study, data=replace(study.data, labelled=names), probes=quick().probes)
    plan = make_plan(study, tmp_path / "study")
    plan.folder.path.mkdir()
    report_study(plan, Console())
    page = plan.folder.report.read_text()
    assert f"0 of {len(plan.cells)} cells are done" in page
    assert "Nothing is measured yet" in page
    assert "tab:coco-eval-c4" in plan.folder.tables("md").read_text()
    lines = list(csv.DictReader(plan.folder.tables("csv").open()))
    assert any(line["paper"] == "41.2" and line["mean"] == "" for line in lines)
    assert not list(plan.folder.plots.iterdir())


def test_scores_of_several_budgets_become_curves(tmp_path: Path) -> None:
    plans = []
    for amount, score in ((300, 0.25), (100, 0.2)):
        budget = BudgetConfig(kind="steps", amount=amount)
        study = replace(voc_study(quick(), seeds=(0,)), probes=(), budget=budget)
        plan = make_plan(study, tmp_path / str(amount))
        finish(plan, "clove", {(0, 0): score, (1, 0): score + 0.02}, images=100, test=10)
        save_study(plan)
        plans.append(plan)
    long, short = plans
    budgets = open_beside(long, [short.folder.path])
    assert [plan.config.budget.amount for plan in budgets] == [100, 300]
    report_study(long, Console(), budgets)
    root = ET.fromstring((long.folder.plots / "budgets-voc-c4.svg").read_text())
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"voc-c4, voc AP", "clove", "100", "300", "steps of pre-training (logarithmic)"} <= {
        *texts
    }
    assert "slotcon" not in texts, "nothing of it is measured"
    drawn = [e for e in root.iter("{http://www.w3.org/2000/svg}circle") if e.get("class") == "run"]
    assert len(drawn) == 4
    assert "Scores over the budget" in long.folder.report.read_text()


def test_curves_refuse_what_is_no_other_budget(tmp_path: Path) -> None:
    plan = make_plan(replace(voc_study(quick()), probes=()), tmp_path / "a")
    with pytest.raises(UserError, match="is no folder of a study"):
        open_beside(plan, [tmp_path / "nowhere"])
    other = make_plan(
        replace(plan.config, budget=BudgetConfig(kind="steps", amount=5)), tmp_path / "b"
    )
    save_study(other)
    with pytest.raises(UserError, match="kind steps, this study one of kind seconds"):
        open_beside(plan, [other.folder.path])
    longer = tuple(replace(each, changes={"iterations": 7}) for each in plan.config.finetunings)
    other = make_plan(replace(plan.config, finetunings=longer), tmp_path / "c")
    save_study(other)
    with pytest.raises(UserError, match="means something else by finetunings: voc-c4, so"):
        open_beside(plan, [other.folder.path])


@pytest.fixture
def table() -> StudyTable:
    ours = OurScore(58.04, 0.36, 0.2, "pre-training", "2 x 3", differs=True)
    rows = (
        StudyRow("CLoVE (a)", 200, (Pair(60.1, ours),), "5 steps", "a_b & c", "2 x 3", ("x | y",)),
        StudyRow("<b>", None, (Pair(None, None),)),
    )
    return StudyTable("study:a", "A title", "A note.", ("AP",), rows, has_paper=True)


def test_markdown_keeps_its_columns(table: StudyTable) -> None:
    lines = [line for line in markdown([table], [], [], title="t").splitlines() if line[:1] == "|"]
    assert len({line.count("|") for line in lines}) == 1
    assert "| 60.1 | 58.0 ± 0.4* | 2 x 3 |" in lines[2]
    assert lines[3].startswith("| <b> | – | – | – |")


def test_csv_has_one_line_per_score(table: StudyTable) -> None:
    first, second = csv.DictReader(io.StringIO(csv_text([table])))
    assert (first["paper"], first["mean"], first["differs"]) == ("60.1", "58.04", "1")
    assert first["basis"] == "pre-training"
    assert second["mean"] == second["paper"] == ""


def test_latex_is_escaped_and_balanced(table: StudyTable) -> None:
    text = latex([table])
    assert r"58.0 $\pm$ 0.4* & 2 x 3" in text
    assert r"a\_b \& c" in text
    assert text.count(r"\begin") == text.count(r"\end")
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len({len(re.findall(r"(?<!\\)&", row)) for row in rows}) == 1


def test_plots_are_svg_that_needs_nothing_else(table: StudyTable) -> None:
    plot = paint_bars(table)
    assert plot is not None
    root = ET.fromstring(plot)
    kinds = [node.get("class") for node in root.iter() if node.tag.endswith(("rect", "path"))]
    assert kinds == ["paper", "ours", "whisker"]
    assert "href" not in plot
    assert paint_bars(replace(table, rows=table.rows[1:])) is None


def test_bars_are_as_long_as_their_scores(table: StudyTable) -> None:
    plot = paint_bars(table)
    assert plot is not None
    widths = {
        node.get("class"): float(node.get("width", 0))
        for node in ET.fromstring(plot).iter()
        if node.tag.endswith("rect")
    }
    assert widths["ours"] / widths["paper"] == pytest.approx(58.04 / 60.1, rel=1e-3)


def test_how_the_pretrainings_went_is_told_run_by_run(tmp_path: Path) -> None:
    plan = make_plan(voc_study(paper_main()), tmp_path)
    finish(plan, "clove-200", {}, images=IMAGENET_IMAGES, test=4952)
    (cell,) = [cell for cell in plan.cells if cell.name == "pretrain/clove-200-s0"]
    lines = [
        {"step": step, "epoch": step / 10, "loss": 100 - step, "images_per_second": 1234.0}
        for step in (1, 5, 9)
    ]
    run = plan.folder.run(cell.name)
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = pretraining_rows(plan)
    assert [run_cells(row) for row in rows] == [
        ["clove-200-s0", "9", "0.9", "1,234", "–", "99.000 to 91.000", "–", "–"]
    ]
    assert "| clove-200-s0 | 9 | 0.9 |" in markdown([], [], rows, title="t")
