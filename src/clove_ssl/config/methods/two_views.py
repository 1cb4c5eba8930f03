"""What the configs of methods on two views of an image share."""

from __future__ import annotations

from clove_ssl.config.views import Interpolation, ViewsConfig
from clove_ssl.errors import UserError


def wide_crops(interpolation: Interpolation) -> ViewsConfig:
    """Two large views that cover 8 % to 100 % of the image, with BYOL's photometrics."""
    return ViewsConfig(local_count=0, global_scale=(0.08, 1.0), interpolation=interpolation)


def check_two_views(views: ViewsConfig, method: str) -> None:
    """Refuse views that a method on two large ones would have to ignore."""
    if (views.global_count, views.local_count) != (2, 0):
        raise UserError(
            f"{method} compares two large views, but method.views asks for {views.global_count} "
            f"large and {views.local_count} small ones. Give --method.views.global-count 2 "
            "--method.views.local-count 0."
        )
