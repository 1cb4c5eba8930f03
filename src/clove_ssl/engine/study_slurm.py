"""A study as SLURM arrays: one per kind of cell, each after the one before."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from clove_ssl.engine.study_cells import KINDS
from clove_ssl.engine.study_plan import StudyPlan

_HEAD = """\
#!/bin/bash
# Submits a study as SLURM arrays. Start it from this folder: bash FILE
# Options for sbatch (account, partition, time) go into SBATCH_OPTIONS:
#   SBATCH_OPTIONS="--partition gpu --time 24:00:00" bash FILE
# A task that is requeued goes on where it was. Submit again for what failed or ran out of time.
set -euo pipefail"""


def slurm_script(plan: StudyPlan, *, gpus: int) -> str:
    """The script, for ``bash``."""
    return "\n".join(_lines(plan, gpus)) + "\n"


def _lines(plan: StudyPlan, gpus: int) -> Iterator[str]:
    folder = plan.folder
    study = f"clove study {shlex.quote(str(folder.study))} --out {shlex.quote(str(folder.path))}"
    together = f" --gpus-per-cell {gpus}" * (gpus > 1)
    logs = shlex.quote(f"{folder.path}/cells/slurm-%A-%a.txt")
    yield _HEAD
    before = ""
    for kind in KINDS:
        numbers = [n for n, cell in enumerate(plan.cells) if cell.kind == kind]
        if not numbers:
            continue
        # A failed cell must not hold up the others, hence afterany; what needs it says so.
        after = f'--dependency "afterany:${before}" ' if before else ""
        work = f'{study} --cell "$SLURM_ARRAY_TASK_ID"{together}'
        yield ""
        yield f"{kind}=$(sbatch ${{SBATCH_OPTIONS:-}} --parsable --requeue --signal B:TERM@120 \\"
        yield f"  --gpus-per-task {gpus} --ntasks 1 --array {numbers[0]}-{numbers[-1]} \\"
        yield f"  {after}--output {logs} --wrap {shlex.quote('exec ' + work)})"
        yield f'echo "{kind}: job ${kind}, {len(numbers)} cells"'
        before = kind
    yield ""
    yield f'sbatch ${{SBATCH_OPTIONS:-}} --dependency "afterany:${before}" --ntasks 1 \\'
    yield f"  --wrap {shlex.quote(study + ' --report')}"
