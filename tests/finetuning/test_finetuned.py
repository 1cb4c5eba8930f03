"""A file of a fine-tuned model that says something wrong about itself is refused."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from builders.tasks.exported_detectors import write_tiny_run

from clove_ssl import load_finetuned
from clove_ssl.errors import UserError

Metadata = dict[str, str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("model") / "run"
    run, _ = write_tiny_run(folder, "voc-semantic", architecture="timm:test_resnet")
    return run.model.read_bytes()


def with_metadata(model: bytes, change: Callable[[Metadata], object]) -> bytes:
    """The file with other metadata; its tensors and their digest stay."""
    length = struct.unpack_from("<Q", model)[0]
    header = json.loads(model[8 : 8 + length])
    change(header["__metadata__"])
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + model[8 + length :]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda said: said.pop("config"), "no config in its metadata"),
        (lambda said: said.pop("vocabulary"), "no vocabulary in its metadata"),
        (lambda said: said.update(vocabulary="[1"), "vocabulary of .* is damaged"),
        (lambda said: said.update(vocabulary="[" * 100_000), "vocabulary of .* is damaged"),
        (lambda said: said.update(vocabulary='{"class_names": "abc"}'), "is damaged"),
        (lambda said: said.update(vocabulary=vocabulary([])), "0 classes"),
        (lambda said: said.update(vocabulary=vocabulary(["a", "b"], [1])), "2 classes with 1 num"),
        (
            lambda said: said.update(vocabulary=vocabulary(["a", "b"], [1, 2, 1])),
            "with 3 numbers, 2",
        ),
        (lambda said: said.update(vocabulary=vocabulary(["a"])), "another model than the one it"),
        (lambda said: said.update(architecture="resnet18"), "another model than the one it holds"),
        (lambda said: said.update(architecture="timm:hf-hub:a/b"), "timm knows no network"),
        (
            lambda said: said.update(
                config=said["config"].replace("head_width: 16", "head_width: 65536")
            ),
            "another model than the one it holds",
        ),
        (lambda said: said.update(sha256="0"), "SHA-256 differs"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(
    model: bytes, change: Callable[[Metadata], object], told: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(with_metadata(model, change))
    with pytest.raises(UserError, match=told):
        load_finetuned(path)


def test_a_version_of_many_digits_is_no_number(model: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(with_metadata(model, lambda said: said.update(format_version="9" * 5000)))
    assert load_finetuned(path).class_names == ("cat", "dog", "person")


def vocabulary(names: list[str], numbers: list[int] | None = None) -> str:
    return json.dumps({"class_names": names, "category_ids": numbers or [], "keypoint_names": []})


def test_a_regnet_comes_back(tmp_path: Path) -> None:
    """torchvision computes its widths with tensors, which have to have values."""
    run, built = write_tiny_run(tmp_path / "run", "detect", architecture="regnet_y_400mf")
    state = load_finetuned(run.path).network.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in built.state_dict().items())
