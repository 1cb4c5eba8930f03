"""The best evaluation of a run: its model and its scores are what the run hands out.

What has been evaluated lies in the run's folder, so a resumed run decides as the uninterrupted one.
"""

from __future__ import annotations

import math
import os
import shutil
from dataclasses import dataclass

from clove_ssl.atomic import cause, write_text
from clove_ssl.console import Console
from clove_ssl.errors import UserError
from clove_ssl.finetuning.plan import FinetunePlan
from clove_ssl.finetuning.score import scores_of
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.tasks.scoring.scores import read_scores
from clove_ssl.training.processes import Process


@dataclass(frozen=True)
class BestModel:
    """Chooses among the evaluations of a run.

    Args:
        run: Where they lie.
        plan: When they were due, and when the learning rate falls.
        patience: How many of them may bring nothing; none for all.
    """

    run: RunDirectory
    plan: FinetunePlan
    patience: int | None

    def history(self, until: int) -> dict[int, float]:
        """The score that is reported, by step; what nothing could be measured for is -1."""
        found = {}
        for step in self.plan.evaluations(0):
            place = self.run.evaluation(step)
            if step <= until and place.scores.is_file():
                _, value = read_scores(place.scores).headline
                found[step] = -1.0 if math.isnan(value) else value
        return found

    def best_step(self, until: int) -> int:
        """The step of the best evaluation; of equal ones the last, which has learned more."""
        history = self.history(until)
        return max(history, key=lambda step: (history[step], step))

    def ends_after(self, step: int) -> bool:
        """Whether nothing better has come for long enough."""
        if self.patience is None:
            return False
        history = self.history(step)
        reached = min(at for at, value in history.items() if value == max(history.values()))
        last_news = max(reached, min(self.plan.decay_steps, default=0))
        return sum(at > last_news for at in history) >= self.patience

    def keep(self, step: int) -> bool:
        """Keep the model of this evaluation if it is the best one, and of no other one."""
        best = self.best_step(step)
        for at in self.history(step):
            if at != best:
                shutil.rmtree(self.run.evaluation(at).model.parent, ignore_errors=True)
        return best == step

    def hand_out(self, step: int) -> int:
        """Make the best evaluation up to ``step`` that of the run; gives its step."""
        best = self.best_step(step)
        place = self.run.evaluation(best)
        for file, target in ((place.model, self.run.model), (place.backbone, self.run.backbone)):
            if file.is_file():  # not so where an interrupted start has moved it already
                target.parent.mkdir(exist_ok=True)
                os.replace(file, target)
        shutil.rmtree(place.model.parent, ignore_errors=True)
        shutil.copytree(
            place.predictions, self.run.predictions, copy_function=self._copy, dirs_exist_ok=True
        )
        # Last, and all or nothing: a run with scores has finished.
        write_text(self.run.scores, place.scores.read_text())
        return best

    def _copy(self, source: str, target: str) -> str:
        """Copy a file; ``copytree`` would make a list of errors, in which their kinds are lost."""
        try:
            return shutil.copyfile(source, target)
        except OSError as error:
            raise UserError(
                f"{source} cannot be copied to {target}: {cause(error)}. Make room, or allow "
                f"yourself to write there, then type: clove resume {self.run.path}"
            ) from None


def after_evaluation(
    best: BestModel, process: Process, console: Console, *, step: int
) -> tuple[dict[str, float], bool]:
    """Whether the run is over after an evaluation, and then the scores of its best one."""
    over = step == best.plan.total_steps
    scores: dict[str, float] = {}
    if process.is_first:
        if best.keep(step):
            console.say("  the best so far")
        if not over and best.ends_after(step):
            over = True
            console.say(f"No better score for {best.patience} evaluations, so the run ends early.")
        if over:
            kept = best.hand_out(step)
            console.say(f"The model of step {kept} is the best and was kept.")
            scores = scores_of(best.run)
    return scores, process.gather(over)[0]
