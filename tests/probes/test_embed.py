"""Features of images as arrays and files."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import clove_ssl
from clove_ssl import cli
from clove_ssl.backbones.build import Backbone, build_backbone
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.errors import UserError
from clove_ssl.probes import features
from clove_ssl.probes.embed import embed
from clove_ssl.views.batch import normalize
from clove_ssl.weights.safetensors_file import save_backbone


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    torch.manual_seed(0)
    network = build_backbone(BackboneConfig(name="resnet18", stage="c4", zero_init_last=False))
    for buffer in network.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    return network


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    for number, name in enumerate(("b.png", "a.png", "more/c.png")):
        grain = np.random.default_rng(number).integers(0, 256, (32, 32, 3), np.uint8)
        Image.fromarray(grain).save(folder / name)
    return folder


def test_features_are_those_of_the_network_with_its_own_statistics(
    backbone: Backbone, photos: Path
) -> None:
    found = embed(backbone, photos, kind="dense", size=32, batch_size=2, device="cpu")
    assert found.names == ("a.png", "b.png", "more/c.png")
    pixels = torch.stack(
        [torch.from_numpy(np.array(Image.open(photos / name))) for name in found.names]
    )
    images = normalize(pixels.permute(0, 3, 1, 2), torch.float32, channels_last=True)
    with torch.no_grad():
        expected = backbone.eval()(images)["c4"]
    assert found.stage == "c4"
    np.testing.assert_allclose(found.features, expected.numpy(), rtol=1e-4, atol=1e-4)
    pooled = embed(backbone, photos, size=32, device="cpu").features
    np.testing.assert_allclose(pooled, expected.mean((2, 3)).numpy(), rtol=1e-4, atol=1e-4)


def test_embed_is_public(backbone: Backbone, photos: Path) -> None:
    assert clove_ssl.embed is embed
    half = clove_ssl.embed(backbone, photos, stage="c2", size=32, dtype="float16", device="cpu")
    assert half.features.shape == (3, 64)
    assert half.features.dtype == np.float16


def test_unreadable_images_are_left_out_and_named(backbone: Backbone, photos: Path) -> None:
    (photos / "a.png").write_bytes(b"no picture")
    found = embed(backbone, photos, size=32, device="cpu")
    assert found.names == ("b.png", "more/c.png")
    assert len(found.features) == 2
    assert "no known image format" in found.unreadable["a.png"]
    for name in found.names:
        (photos / name).write_bytes(b"")
    with pytest.raises(UserError, match="None of the 3 images"):
        embed(backbone, photos, size=32, device="cpu")


def test_an_image_listed_twice_is_embedded_twice(backbone: Backbone, photos: Path) -> None:
    (photos / "list.txt").write_text("a.png\nb.png\na.png\n")
    found = embed(backbone, photos / "list.txt", size=32, device="cpu")
    assert found.names == ("a.png", "b.png", "a.png")
    np.testing.assert_array_equal(found.features[0], found.features[2])


class TestCommand:
    @pytest.fixture
    def weights(self, backbone: Backbone, tmp_path: Path) -> Path:
        save_backbone(backbone, tmp_path / "backbone.safetensors", {})
        return tmp_path / "backbone.safetensors"

    def test_an_npz_file_holds_names_and_features(self, weights: Path, photos: Path) -> None:
        out = weights.parent / "features.npz"
        arguments = ["--data", str(photos), "--out", str(out), "--size", "32", "--device", "cpu"]
        assert cli.main(["embed", str(weights), *arguments]) == 0
        with np.load(out) as arrays:
            assert arrays["names"].tolist() == ["a.png", "b.png", "more/c.png"]
            assert arrays["features"].shape == (3, 256)
            assert str(arrays["stage"]) == "c4"

    def test_a_parquet_file_has_a_row_per_image(self, weights: Path, photos: Path) -> None:
        parquet = pytest.importorskip("pyarrow.parquet")
        out = weights.parent / "features.parquet"
        arguments = ["--data", str(photos), "--out", str(out), "--size", "32", "--device", "cpu"]
        assert cli.main(["embed", str(weights), *arguments, "--kind", "dense"]) == 0
        table = parquet.read_table(out)
        assert table["name"].to_pylist() == ["a.png", "b.png", "more/c.png"]
        assert table.schema.metadata[b"shape"] == b"256 2 2"
        assert len(table["features"][0].as_py()) == 256 * 4

    def test_parquet_without_pyarrow_says_what_to_install(
        self,
        weights: Path,
        photos: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        out = weights.parent / "features.parquet"
        assert cli.main(["embed", str(weights), "--data", str(photos), "--out", str(out)]) == 2
        assert "clove-ssl[parquet]" in capsys.readouterr().err
        assert not out.exists()

    @pytest.mark.parametrize(
        ("out", "message"), [("a.csv", "unknown ending"), ("nowhere/a.npz", "does not exist")]
    )
    def test_a_place_that_cannot_be_written_is_refused_before_the_work(
        self,
        weights: Path,
        photos: Path,
        out: str,
        message: str,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        arguments = ["--data", str(photos), "--out", str(weights.parent / out)]
        assert cli.main(["embed", str(weights), *arguments]) == 2
        assert message in capsys.readouterr().err


def test_a_column_of_pixels_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    column = torch.randint(0, 256, (3, 900, 2), dtype=torch.uint8)
    usual = features.scale(column, 32)
    monkeypatch.setattr(features, "_MOST_PIXELS", 900 * 32 - 1)
    assert (features.scale(column, 32).int() - usual.int()).abs().max() <= 1
