"""A fine-tuning run that is trained and evaluated in turn."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from clove_ssl.errors import UserError
from clove_ssl.finetuning.best import BestModel, after_evaluation
from clove_ssl.finetuning.evaluate import Evaluation
from clove_ssl.finetuning.learner import TaskFeed
from clove_ssl.finetuning.plan import FinetunePlan
from clove_ssl.finetuning.score import say_scores, score_and_write, scores_of
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.metrics import Metrics, read_metrics
from clove_ssl.tasks.base import TaskModel
from clove_ssl.training.loop import TrainingLoop
from clove_ssl.training.observer import Observer
from clove_ssl.training.signals import Terminated


@dataclass(frozen=True)
class EvaluatedRun:
    """A loop, and what is to be evaluated between its parts and at its end."""

    run: RunDirectory
    loop: TrainingLoop
    plan: FinetunePlan
    model: TaskModel
    evaluation: Evaluation

    def train(self) -> dict[str, float] | None:
        """Train to the end; the scores that the first process has then, None if asked to stop."""
        evaluation, process = self.evaluation, self.loop.process
        batches = evaluation.task.training_batches(evaluation.data, evaluation.reading)
        feed = TaskFeed(batches, process, images=evaluation.data.train_images)
        with closing(feed), closing(self._build_observer()) as observer:
            return self._train_on(feed, observer)

    def _build_observer(self) -> Observer:
        loop, logging = self.loop, self.evaluation.config.logging
        is_first = loop.process.is_first
        return Observer(
            logging,
            self.plan,
            loop.process,
            console=loop.console,
            metrics=Metrics(self.run, logging, start_step=loop.step) if is_first else None,
            slow_advice="Shorten the schedule with --steps, or take a smaller network.",
        )

    def _train_on(self, feed: TaskFeed, observer: Observer) -> dict[str, float] | None:
        """Train from evaluation to evaluation."""
        loop, settings = self.loop, self.evaluation.config.evaluation
        start, scores = loop.step, dict[str, float]()
        best = BestModel(self.run, self.plan, settings.patience)
        for step in self.plan.evaluations(start):
            done = loop.run(feed, observer, until=step)
            # After the last step there is still an evaluation, which may take longer than a
            # machine that goes away will wait.
            if not done or any(loop.process.gather(loop.asked_to_stop)):
                return None
            try:
                scores = self._evaluate(step, observer, trained=step > start)
            except Terminated:
                if loop.process.world_size > 1:  # the others may wait; this one has to tell them
                    raise
                return None
            if settings.best:
                scores, ends = after_evaluation(best, loop.process, loop.console, step=step)
                if ends:
                    break
        return scores

    def _evaluate(self, step: int, observer: Observer, *, trained: bool) -> dict[str, float]:
        """Scores after ``step`` steps, unless an earlier start has left them and none followed."""
        is_last = step == self.evaluation.config.total_iterations
        keeps_best = self.evaluation.config.evaluation.best
        place = self.run if is_last and not keeps_best else self.run.evaluation(step)
        process = self.loop.process
        if not trained and process.gather(place.scores.is_file())[0]:
            return self._remembered(step, place, observer) if process.is_first else {}
        export = place if is_last or keeps_best else None
        self.evaluation.predict(self.model, place.predictions, step=step, export=export)
        if not process.is_first:
            return {}
        self._score(place, say_classes=is_last)
        observer.evaluated(step, scores_of(place))
        return scores_of(place)

    def _remembered(self, step: int, place: RunDirectory, observer: Observer) -> dict[str, float]:
        """The scores of an earlier start."""
        scores = scores_of(place)
        rows = read_metrics(self.run)
        # A kill may have come between the file of scores and the line about them.
        if not any(row["step"] == step and scores.keys() <= row.keys() for row in rows):
            observer.evaluated(step, scores)
        return scores

    def _score(self, place: RunDirectory, *, say_classes: bool) -> None:
        """Score what was predicted, write it beside the predictions, and say it."""
        task, console = self.evaluation.task, self.loop.console
        if missing := task.why_not_scored():
            raise UserError(
                f"The model is trained, and what it predicts is in {place.predictions}. {missing}; "
                f"then: clove score {self.run.path}"
            )
        with console.working("Scoring"):
            scores = score_and_write(task, place, self.evaluation.data.test)
        say_scores(scores, console, classes=say_classes)
