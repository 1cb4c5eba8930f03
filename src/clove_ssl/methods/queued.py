"""What methods with queues of earlier keys share: keys in shuffled groups, which enter at the end.

Dimensions: B images, D channels.
"""

from __future__ import annotations

from torch import Tensor

from clove_ssl.layers.normalization import unit_vectors
from clove_ssl.layers.view_norm import normalize_by_view
from clove_ssl.methods.base import Progress
from clove_ssl.methods.compiled import EncoderInputs
from clove_ssl.methods.config import QueuedConfig
from clove_ssl.methods.contrastive import Contrast, contrast
from clove_ssl.methods.queue import KeyBank
from clove_ssl.methods.shuffling import BatchOrders, Shuffling, forward_shuffled, groups_here
from clove_ssl.methods.teacher_student import Encoder, TeacherStudentMethod
from clove_ssl.views.batch import ViewBatch


class QueuedMethod(TeacherStudentMethod[Encoder]):
    """A student, and a teacher whose keys wait in queues to be negatives."""

    def __init__(self, config: QueuedConfig, encoder: Encoder) -> None:
        super().__init__(config, encoder)
        self._shuffle_groups = config.shuffle_groups
        self.groups_together = 1
        self._orders = BatchOrders()

    def before_forward(self, progress: Progress) -> None:
        """Follow the student, where it is done here, and draw who is normalised with whom."""
        super().before_forward(progress)
        self._orders.begin(progress.step)

    def after_step(self, progress: Progress) -> None:
        """Let the teacher and all queues move on."""
        super().after_step(progress)
        for module in self.modules():
            if isinstance(module, KeyBank):
                module.advance()

    def left_by_forward(self) -> list[list[Tensor]]:
        """What the queues get."""
        return [bank.waiting for bank in self.modules() if isinstance(bank, KeyBank)]

    @property
    def key_groups(self) -> int:
        """Groups in which keys are normalised; outside of training nothing is."""
        return self._shuffle_groups if self.training else 0

    def keys_of(self, images: Tensor) -> Tensor:
        """What the teacher makes of images, in shuffled groups: (B, 3, H, W) -> (B, ...)."""
        return forward_shuffled(self.teacher, images, **self.shuffling())

    def shuffling(self) -> Shuffling:
        """How keys are shuffled in this step."""
        together = self.groups_together > 1
        return {"orders": self._orders, "groups": self.key_groups, "together": together}

    def contrast_with_queue(
        self, query: Tensor, key: Tensor, queue: KeyBank, *, temperature: float
    ) -> Contrast:
        """Find the key (B, D) of each query (B, D) among earlier ones, which it joins later."""
        query, key = unit_vectors(query), unit_vectors(key)
        if self.training:
            queue.collect(key)
        return contrast(query, key, queue.entries, temperature=temperature)

    def before_compilation(self) -> None:
        """Let all groups of keys pass together, each normalised on its own as before.

        A pass for each would leave the GPU waiting for the host.
        """
        super().before_compilation()
        # The student is not touched: it sees its batch as a whole.
        groups = groups_here(self._shuffle_groups)
        if groups > 1 and normalize_by_view(self.teacher.module, views=groups):
            self.groups_together = groups

    def encoder_inputs(self, batch: ViewBatch) -> EncoderInputs:
        """The first view for the student, groups of the second for the teacher."""
        first, second = batch.views
        return EncoderInputs([first.pixels], self.key_passes(second.pixels))

    def key_passes(self, images: Tensor) -> list[Tensor]:
        """Groups of images (B, ...) as they go through the teacher, but not shuffled."""
        groups = groups_here(self.key_groups) // self.groups_together
        return list(images.chunk(max(1, groups)))
