"""Which files go to the batch decoder, and what becomes of the others.

``decode`` stands in for nvJPEG: what arrives there is what the batch decoder was given.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from references.odd_files import encode, exif_orientation, jpeg_of_size, photo, write_odd_folder
from torch import Tensor

from clove_ssl.data import decode_gpu
from clove_ssl.data.decode import DecodeError, decode
from clove_ssl.data.decode_gpu import decode_jpegs

MANY = 10**8


class StandIn:
    """Decodes like nvJPEG does: all files or none; remembers the sizes of its batches."""

    def __init__(self, refuses: bytes | None = None) -> None:
        self.batches: list[int] = []
        self._refuses = refuses

    def __call__(self, files: list[Tensor], device: torch.device) -> list[Tensor]:
        self.batches.append(len(files))
        data = [bytes(file.numpy()) for file in files]
        if self._refuses in data:
            raise RuntimeError("nvjpegDecode failed")
        return [decode(each, max_pixels=MANY).contiguous() for each in data]


def test_an_odd_folder_is_decoded_as_on_the_cpu_and_bad_files_fail_alone(tmp_path: Path) -> None:
    folder = write_odd_folder(tmp_path / "odd")
    names = [name for name in folder.good + folder.bad if (tmp_path / "odd" / name).exists()]
    files = [(tmp_path / "odd" / name).read_bytes() for name in names]
    stand_in = StandIn()
    for name, data, result in zip(
        names, files, decode_jpegs(files, "cpu", max_pixels=MANY, decoder=stand_in), strict=True
    ):
        if name in folder.good:
            assert isinstance(result, Tensor), (name, result)
            assert torch.equal(result, decode(data, max_pixels=MANY)), name
            assert result.is_contiguous(), name
        else:
            assert isinstance(result, DecodeError), name
    assert len(stand_in.batches) == 1
    assert stand_in.batches[0] >= 8


@pytest.mark.parametrize(
    "data",
    [
        encode(photo(), "PNG"),
        encode(Image.fromarray(photo()).convert("L"), "JPEG"),
        encode(Image.fromarray(photo()).convert("CMYK"), "JPEG"),
        encode(photo(), "JPEG", exif=exif_orientation(6)),
        encode(photo(), "JPEG", keep_rgb=True),
    ],
    ids=["PNG", "grey", "CMYK", "turned", "RGB"],
)
def test_what_decoders_disagree_about_stays_on_the_cpu(data: bytes) -> None:
    stand_in = StandIn()
    (result,) = decode_jpegs([data], "cpu", max_pixels=MANY, decoder=stand_in)
    assert stand_in.batches == []
    assert torch.equal(result, decode(data, max_pixels=MANY))


def test_too_large_a_picture_is_refused_before_it_is_decoded() -> None:
    files = [jpeg_of_size(encode(photo(), "JPEG"), 65_000, 65_000), encode(photo(), "JPEG")]
    bomb, picture = decode_jpegs(files, "cpu", max_pixels=MANY, decoder=StandIn())
    assert isinstance(bomb, DecodeError)
    assert "max_pixels" in str(bomb)
    assert isinstance(picture, Tensor)


def test_a_file_that_breaks_the_batch_is_decoded_on_the_cpu_and_the_others_are_not() -> None:
    files = [encode(photo(), "JPEG", quality=50 + number) for number in range(8)]
    stand_in = StandIn(refuses=files[5])
    results = decode_jpegs(files, "cpu", max_pixels=MANY, decoder=stand_in)
    for data, result in zip(files, results, strict=True):
        assert torch.equal(result, decode(data, max_pixels=MANY))
    assert stand_in.batches == [8, 4, 4, 2, 1, 1, 2]


def test_running_out_of_memory_is_not_taken_for_a_bad_file() -> None:
    def full(files: list[Tensor], device: torch.device) -> list[Tensor]:
        raise torch.OutOfMemoryError("full")

    with pytest.raises(torch.OutOfMemoryError):
        decode_jpegs([encode(photo(), "JPEG")], "cpu", max_pixels=MANY, decoder=full)


def test_a_torchvision_without_a_decoder_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_gpu, "find_batch_decoder", lambda: None)
    with pytest.raises(RuntimeError, match="decode on the CPU"):
        decode_jpegs([], "cpu", max_pixels=MANY)
