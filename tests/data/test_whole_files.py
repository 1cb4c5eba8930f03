"""Whatever is called like an image is read within limits, or refused with its name."""

from __future__ import annotations

import io
import os
import tarfile
import time
from pathlib import Path

import pytest

from clove_ssl.data.labels.mask_folders import read_mask, read_picture
from clove_ssl.data.sources import FolderSource, TarSource
from clove_ssl.data.whole_files import MAX_FILE_BYTES, read_whole
from clove_ssl.errors import UserError
from clove_ssl.tasks.loading.images import read_image, size_of_file

GIB = 2**30
PROC = Path("/proc/self/status")


def sparse(path: Path) -> Path:
    with path.open("wb") as file:
        file.write(b"\xff\xd8\xff\xe0")
    os.truncate(path, 6 * GIB)
    return path


def pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def liar(path: Path) -> Path:
    path.symlink_to(PROC)
    return path


ODD = {
    sparse: "it has 6.0 GiB; an image file has at most 1 GiB",
    pipe: "is not a regular file",
    liar: "more than the 0 bytes that it is said to have",
}


@pytest.mark.parametrize("make", ODD)
def test_what_is_no_image_file_is_refused_at_once(make, tmp_path: Path) -> None:
    path = make(tmp_path / "a.jpg")
    start = time.process_time()
    with pytest.raises(OSError, match=ODD[make]):
        FolderSource(tmp_path).read(0)
    for read in (read_picture, read_mask, lambda each: read_image(each, (8, 8))):
        with pytest.raises(UserError, match=ODD[make]):
            read(path)
    assert time.process_time() - start < 1


@pytest.mark.parametrize("make", [sparse, pipe])
def test_the_size_of_an_image_is_not_sought_in_gigabytes(make, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=ODD[make]):
        size_of_file(make(tmp_path / "a.jpg"))


def test_a_member_of_a_tar_may_not_have_gigabytes(tmp_path: Path) -> None:
    member = tarfile.TarInfo("a.jpg")
    member.size = 3 * GIB
    path = tmp_path / "a.tar"
    path.write_bytes(member.tobuf())
    os.truncate(path, 3 * GIB + 2048)
    with pytest.raises(OSError, match=r"it has 3.0 GiB"):
        TarSource(path).read(0)


def test_an_ordinary_file_is_read_whole(tmp_path: Path) -> None:
    content = io.BytesIO(os.urandom(300_000)).getvalue()
    (tmp_path / "a.jpg").write_bytes(content)
    assert read_whole(tmp_path / "a.jpg") == content
    assert len(content) < MAX_FILE_BYTES
