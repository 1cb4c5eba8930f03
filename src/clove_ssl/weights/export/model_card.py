"""``model_card.md``: what a backbone is, beside its weights, for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from clove_ssl import __version__
from clove_ssl.atomic import write_text
from clove_ssl.backbones.build import CAFFE_SUFFIX, Backbone
from clove_ssl.config import files
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.metrics import PROBE_PREFIX, PROBE_SECONDS, last_values, read_metrics
from clove_ssl.text_tables import in_markdown
from clove_ssl.views.batch import IMAGENET_MEAN, IMAGENET_STD
from clove_ssl.weights.safetensors_file import save_backbone

HEALTH = ("loss", "cos_positive", "cos_negative", "feature_std", "effective_rank")


@dataclass(frozen=True, kw_only=True)
class ModelCardFacts:
    """Everything the card says about one backbone."""

    method: str
    """Name of the pre-training method."""
    architecture: str
    """Name of the backbone, as in ``clove list backbones``."""
    stage: str
    """Deepest stage that was trained."""
    output_stride: int
    data: str = "not recorded"
    """Where the images came from."""
    images: int = 0
    """Images in the data; 0 where nobody knows."""
    labelled: bool = False
    """Whether their classes were learned."""
    images_seen: int = 0
    """Images drawn over the whole run, repeats included."""
    steps: int | None = None
    """Optimizer steps: 0 for random weights, ``None`` for weights of another program."""
    config_hash: str = ""
    library_version: str = __version__
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    health: Mapping[str, float] = field(default_factory=dict)
    """Health metrics at the end of the run, by name."""
    warnings: tuple[str, ...] = ()
    """Health warnings of the run."""
    probes: Mapping[str, float] = field(default_factory=dict)
    """Scores of probes of the final backbone, by name."""
    licence: str = "not stated; decide before you publish the weights"
    """Licence of the weights; the data may restrict it."""
    branch: str = ""
    """Student or teacher, where the method has both."""
    loading: str = ""
    """How to open the exported file, where it is not ``backbone.safetensors``."""


def export_run(
    run: RunDirectory, config: PretrainConfig, backbone: Backbone, *, images: int, steps: int
) -> None:
    """Write what a finished run leaves: its backbone, and the card beside it."""
    # The backbone first: if the card fails, what took days is there.
    metadata = {"method": config.method.name, "config_hash": files.fingerprint(config)}
    save_backbone(backbone, run.backbone, metadata)
    metrics = last_values(read_metrics(run))
    facts = card_facts(config, backbone, images=images, steps=steps, metrics=metrics)
    write_model_card(run.model_card, facts)


def card_facts(
    config: PretrainConfig,
    backbone: Backbone,
    *,
    images: int,
    steps: int,
    metrics: Mapping[str, float],
) -> ModelCardFacts:
    """The facts of a run after some steps; ``metrics`` has the last value of each."""
    return ModelCardFacts(
        method=config.method.name,
        architecture=config.backbone.name,
        stage=backbone.stage,
        output_stride=config.backbone.output_stride,
        data=config.data.shown,
        images=images,
        labelled=config.method.needs_labels,
        images_seen=steps * config.batch_size,
        steps=steps,
        config_hash=files.fingerprint(config),
        health={name: metrics[name] for name in HEALTH if name in metrics},
        probes=_probed(metrics),
    )


def _probed(metrics: Mapping[str, float]) -> dict[str, float]:
    """What the last probe on the way found; it is of the very end, if there was one."""
    return {
        name.removeprefix(PROBE_PREFIX): value
        for name, value in metrics.items()
        if name.startswith(PROBE_PREFIX) and name != PROBE_SECONDS
    }


def write_model_card(path: Path, facts: ModelCardFacts) -> None:
    """Write the card as Markdown, whole or not at all: its presence says that a run is done."""
    write_text(path, render_model_card(facts))


def render_model_card(facts: ModelCardFacts) -> str:
    """The card as Markdown."""
    sections = [
        _title(facts),
        _origin(facts),
        _values("## Health at the end of the run", facts.health),
        _warnings(facts.warnings),
        _values("## Probes", facts.probes),
        _loading(facts),
        _limitations(facts),
        f"## Licence\n\n{facts.licence}",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _title(facts: ModelCardFacts) -> str:
    if facts.steps == 0:
        return f"# {facts.architecture} with random weights"
    return f"# {facts.architecture}, pre-trained with {facts.method}"


def _origin(facts: ModelCardFacts) -> str:
    labels = "class labels" if facts.labelled else "no labels"
    data = {
        "Trained up to stage": facts.stage,
        "Data": f"{facts.data} ({facts.images:,} images, {labels})",
        "Images seen": f"{facts.images_seen:,} in {facts.steps or 0:,} optimizer steps",
    }
    if not facts.images:
        data = {"Data": facts.data}
    config = {"Config": f"`{facts.config_hash}` (`config.yaml` of the run)"}
    rows = {
        "Method": f"{facts.method}, {facts.branch}" if facts.branch else facts.method,
        "Network": f"{facts.architecture}, output stride {facts.output_stride}",
        **({"Training": "none"} if facts.steps == 0 else data),
        **(config if facts.config_hash else {}),
        "Written by": f"clove-ssl {facts.library_version}",
    }
    return in_markdown([("", ""), *rows.items()])


def _values(title: str, values: Mapping[str, float]) -> str:
    if not values:
        return ""
    rows = [(name, f"{value:.4g}") for name, value in values.items()]
    return f"{title}\n\n{in_markdown([('metric', 'value'), *rows])}"


def _warnings(warnings: tuple[str, ...]) -> str:
    if not warnings:
        return ""
    return "\n".join(["Warnings of the run:", "", *(f"- {text}" for text in warnings)])


def _loading(facts: ModelCardFacts) -> str:
    return f"""## How to load

Input: RGB, values 0 to 1, minus mean {facts.mean}, divided by {facts.std}.

{facts.loading or _loading_of_safetensors(facts)}"""


def _loading_of_safetensors(facts: ModelCardFacts) -> str:
    library, _, network = facts.architecture.rpartition(":")
    elsewhere = _loading_in_timm(network) if library else _loading_in_torchvision(facts)
    return f"""```python
from clove_ssl import load_backbone

backbone = load_backbone("backbone.safetensors").eval()
maps = backbone(images)  # by stage: "c2", "c3", "c4", "c5"
```

{elsewhere}"""


def _loading_in_torchvision(facts: ModelCardFacts) -> str:
    if facts.architecture.endswith(CAFFE_SUFFIX):
        return "torchvision has no such network: its ResNets stride in another convolution."
    is_dilated = facts.output_stride == 16
    dilated = ", replace_stride_with_dilation=[False, False, True]" if is_dilated else ""
    head = "classifier" if facts.architecture.startswith("convnext") else "fc"
    return f"""Without clove-ssl; nothing but the classifier is missing:

```python
import torch
import torchvision
from safetensors.torch import load_file

network = torchvision.models.get_model("{facts.architecture}"{dilated})
network.{head} = torch.nn.Identity()
network.load_state_dict(load_file("backbone.safetensors"))
```"""


def _loading_in_timm(network: str) -> str:
    return f"""Without clove-ssl; give `out_indices` if it was trained up to an earlier stage:

```python
import timm
from safetensors.torch import load_file

network = timm.create_model("{network}", features_only=True)
network.load_state_dict(load_file("backbone.safetensors"))
```"""


def _limitations(facts: ModelCardFacts) -> str:
    if facts.steps == 0:
        return _LIMITS_OF_RANDOM_WEIGHTS
    learned = "its classifier is not included" if facts.labelled else "has learned no class names"
    return _LIMITS.format(learned=learned)


_LIMITS = """## Intended use and limits

A starting point for training on detection, segmentation, keypoints and other dense tasks. It is
not a classifier and {learned}. Features reflect the images above: whatever they
lack or overstate, these weights lack or overstate, and nobody has checked them for bias. Batch-norm
statistics are those of pre-training; let batch norm train when you fine-tune. Compare with
random weights on your own task before you rely on the gain."""

_LIMITS_OF_RANDOM_WEIGHTS = """## Intended use and limits

A baseline: what a task reaches from these weights is what it owes to no pre-training at all.
Batch-norm statistics have seen no image; let batch norm train, or take statistics afresh."""
