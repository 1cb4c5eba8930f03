"""Tar shards: patterns, what is indexed, and the files that keep the index."""

from __future__ import annotations

import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from builders.files.odd_files import encode, photo
from builders.files.small_sources import contents, member, names, write_tar, write_two_shards

from clove_ssl.data import shards
from clove_ssl.data.decode import decode
from clove_ssl.data.sources import FolderSource, TarSource
from clove_ssl.errors import UserError


@pytest.fixture
def two_shards(tmp_path: Path) -> Path:
    """Folder with shards 08 and 09 of three images each."""
    write_two_shards(tmp_path)
    return tmp_path


class TestShards:
    def test_images_come_in_the_order_of_shards_and_members(self, two_shards: Path) -> None:
        source = TarSource(two_shards / "*.tar")
        expected = [f"{shard}/{n}".encode() * (n + 1) for shard in ("08", "09") for n in range(3)]
        assert contents(source) == expected
        assert names(source)[3] == f"{two_shards}/09.tar:0.jpg"
        assert source.read(-1) == expected[-1]
        for read in (source.read, source.name):
            with pytest.raises(IndexError):
                read(6)

    @pytest.mark.parametrize(
        ("pattern", "found"),
        [
            ("08.tar", ["08"]),
            ("{08..09}.tar", ["08", "09"]),
            ("{09..08}.tar", ["09", "08"]),
            ("{8..9}.tar", ["8", "9"]),
            ("{008..010}.tar", ["008", "009", "010"]),
            ("{09,08}.tar", ["09", "08"]),
            ("0{8,9}.{tar,t}", ["08", "09"]),
            ("{08,{09,010}}.tar", ["08", "09", "010"]),
            ("0?.tar", ["08", "09"]),
            ("*.tar", ["008", "009", "010", "08", "09", "8", "9", "[x]", "{y}"]),
            ("{09,0*}.tar", ["09", "008", "009", "010", "08"]),
            ("[x].tar", ["[x]"]),
            ("{y}.tar", ["{y}"]),
        ],
    )
    def test_patterns_are_read_as_a_shell_reads_them(
        self, tmp_path: Path, pattern: str, found: list[str]
    ) -> None:
        every = ["008", "009", "010", "08", "09", "8", "9", "[x]", "{y}"]
        for shard in every:
            write_tar(tmp_path / f"{shard}.tar", member(f"{shard}.jpg", shard.encode()))
        (tmp_path / "08.t").symlink_to("08.tar")
        (tmp_path / "09.t").symlink_to("09.tar")
        if pattern.endswith("t}"):
            found = [f"{shard}{suffix}" for shard in found for suffix in (".tar", ".t")]
        else:
            found = [f"{shard}.tar" for shard in found]
        assert TarSource(tmp_path / pattern).shards == [str(tmp_path / name) for name in found]

    def test_the_first_missing_shard_is_named(self, two_shards: Path) -> None:
        with pytest.raises(UserError, match=r"/10\.tar \(3 shards are missing\)"):
            TarSource(two_shards / "{08..12}.tar")
        with pytest.raises(UserError, match=r"No file matches .*x\*\.tar"):
            TarSource(two_shards / "x*.tar")

    def test_only_plain_images_are_indexed(self, tmp_path: Path) -> None:
        link, device = tarfile.SYMTYPE, tarfile.CHRTYPE
        write_tar(
            tmp_path / "s.tar",
            member("folder", type=tarfile.DIRTYPE),
            member("folder/good.JPG", b"good"),
            member("label.cls", b"3"),
            member("/etc/absolute.jpg", b"absolute"),
            member("../up.jpg", b"up"),
            member("a/../../up.jpg", b"up"),
            member("soft.jpg", type=link, linkname="/etc/passwd"),
            member("hard.jpg", type=tarfile.LNKTYPE, linkname="folder/good.JPG"),
            member("device.jpg", type=device),
            member("pipe.jpg", type=tarfile.FIFOTYPE),
            member("dots..in..name.jpg", b"dots"),
        )
        source = TarSource(tmp_path / "s.tar")
        assert [name.partition(":")[2] for name in names(source)] == [
            "folder/good.JPG",
            "dots..in..name.jpg",
        ]
        assert contents(source) == [b"good", b"dots"]
        assert source.ignored == 7
        assert source.damaged == ()

    @pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
    def test_long_and_foreign_names_are_read(self, tmp_path: Path, form: int) -> None:
        long = "/".join(["ordner größe"] * 30) + "/图.png"
        write_tar(tmp_path / "s.tar", member(long, b"pixels"), member("x.png", b"y"), format=form)
        source = TarSource(tmp_path / "s.tar")
        assert names(source)[0] == f"{tmp_path}/s.tar:{long}"
        assert contents(source) == [b"pixels", b"y"]

    def test_what_is_no_plain_tar_is_refused(self, tmp_path: Path) -> None:
        for suffix, program in (("gz", "gunzip"), ("bz2", "bunzip2"), ("xz", "unxz")):
            path = tmp_path / f"s.tar.{suffix}"
            with tarfile.open(path, f"w:{suffix}") as tar:
                tar.addfile(member("a.jpg")[0])
            with pytest.raises(UserError, match=f"is compressed.*{program} < {path} >"):
                TarSource(path)
        (tmp_path / "zip.tar").write_bytes(b"PK\x03\x04rest")
        with pytest.raises(UserError, match="is a zip archive. Unpack it"):
            TarSource(tmp_path / "zip.tar")
        for name, data in (("empty.tar", b""), ("text.tar", b"hello\n" * 500), ("p.tar", b"P6 ")):
            (tmp_path / name).write_bytes(data)
            with pytest.raises(UserError, match="not a tar file"):
                TarSource(tmp_path / name)
        (tmp_path / "folder.tar").mkdir()
        with pytest.raises(UserError, match=r"folder\.tar: Is a directory"):
            TarSource(tmp_path / "folder.tar")
        write_tar(tmp_path / "none.tar", member("a.txt", b"text"))
        with pytest.raises(UserError, match="1 shard holds no images"):
            TarSource(tmp_path / "none.tar")

    def test_of_a_truncated_shard_the_whole_images_are_used(self, tmp_path: Path) -> None:
        images = [member(f"{n}.jpg", bytes([n]) * 700) for n in range(3)]
        whole = write_tar(tmp_path / "whole.tar", *images).read_bytes()
        path = tmp_path / "cut.tar"
        for length in range(600, 3 * 1536 + 1024, 100):  # a member takes 512 + 1024 bytes
            path.write_bytes(whole[:length])
            usable = sum(length >= n * 1536 + 512 + 700 for n in range(3))
            if usable:
                index = shards.scan(str(path))
                assert len(index.names) == usable
                assert index.complete == (length >= 3 * 1536 + 512)
            else:
                with pytest.raises(UserError, match="before the end of its first image"):
                    shards.scan(str(path))
        path.write_bytes(whole[:2000])
        assert TarSource(path).damaged == (str(path),)

    def test_members_alone_without_an_end_block_are_complete(self, two_shards: Path) -> None:
        whole = (two_shards / "08.tar").read_bytes()
        bare = two_shards / "bare.tar"
        bare.write_bytes(whole[: 4 * 1024])
        assert TarSource(bare).damaged == ()

    def test_a_damaged_header_on_the_way_is_noticed(self, two_shards: Path) -> None:
        data = bytearray((two_shards / "08.tar").read_bytes())
        data[1024:1040] = b"?" * 16  # name of the second member; its checksum is wrong now
        (two_shards / "08.tar").write_bytes(data)
        source = TarSource(two_shards / "08.tar")
        assert len(source) == 1
        assert source.damaged == (str(two_shards / "08.tar"),)

    @pytest.mark.parametrize("size", [-100, -512, -1024, -(10**6)])
    def test_a_negative_size_does_no_harm(self, tmp_path: Path, size: int) -> None:
        good, evil = member("a.jpg", b"a")[0], member("b.jpg")[0]
        header = bytearray(evil.tobuf(tarfile.GNU_FORMAT))
        header[124:136] = (2**96 + size).to_bytes(12, "big")  # base 256
        header[148:156] = b"        "
        header[148:156] = b"%06o\0 " % sum(header)
        block = good.tobuf() + b"a".ljust(512, b"\0")
        (tmp_path / "s.tar").write_bytes(block + bytes(header) + bytes(1024))
        source = TarSource(tmp_path / "s.tar")
        assert contents(source) == [b"a"]
        assert source.damaged or source.ignored

    def test_reading_a_shard_that_shrank_fails(self, two_shards: Path) -> None:
        source = TarSource(two_shards / "08.tar")
        os.truncate(two_shards / "08.tar", 100)
        with pytest.raises(OSError, match="shorter"):
            source.read(0)

    def test_more_shards_than_may_be_open_are_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shards, "OPEN_SHARDS", 2)
        for number in range(5):
            write_tar(tmp_path / f"{number}.tar", member("a.jpg", b"%d" % number))
        source = TarSource(tmp_path / "{0..4}.tar")
        before = len(os.listdir("/dev/fd"))
        for order in (range(5), reversed(range(5))):
            for index in order:
                assert source.read(index) == b"%d" % index
        assert len(os.listdir("/dev/fd")) == before + 2
        del source
        assert len(os.listdir("/dev/fd")) == before


class TestIndexFiles:
    @pytest.fixture
    def scans(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Paths of the shards that were really scanned."""
        scanned: list[str] = []
        scan = shards.scan
        monkeypatch.setattr(shards, "scan", lambda path: scanned.append(path) or scan(path))
        return scanned

    def test_an_index_is_made_once_and_kept_beside_the_shard(
        self, two_shards: Path, scans: list[str], cache: Path
    ) -> None:
        first, again = TarSource(two_shards / "08.tar"), TarSource(two_shards / "08.tar")
        assert len(scans) == 1
        assert names(first) == names(again)
        assert contents(first) == contents(again)
        files = {path.name for path in two_shards.iterdir()}
        assert files == {"08.tar", "08.tar.clove-index", "09.tar"}
        assert not list(cache.iterdir())

    def test_counts_survive_in_the_index(self, tmp_path: Path, scans: list[str]) -> None:
        path = write_tar(
            tmp_path / "s.tar",
            member("a.jpg", b"a"),
            member("../b.jpg"),
            member("c.jpg", b"c" * 600),
        )
        os.truncate(path, 512 * 5)
        for _ in range(2):
            source = TarSource(path)
            assert (len(source), source.ignored, source.damaged) == (1, 1, (str(path),))
        assert len(scans) == 1

    def test_a_changed_shard_is_scanned_again(self, two_shards: Path, scans: list[str]) -> None:
        path = two_shards / "08.tar"
        TarSource(path)
        stat = path.stat()
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
        TarSource(path)
        assert len(scans) == 2
        write_tar(path, member("new.jpg", b"new"))
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
        os.truncate(path, path.stat().st_size + 512)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
        assert contents(TarSource(path)) == [b"new"]

    @pytest.mark.parametrize(
        "damage", ["empty", "text", "cut", "bit", "pickle", "offsets", "counts"]
    )
    def test_a_damaged_index_is_made_anew(
        self, two_shards: Path, scans: list[str], damage: str
    ) -> None:
        shard, index = two_shards / "08.tar", two_shards / "08.tar.clove-index"
        expected = contents(TarSource(shard))
        data = index.read_bytes()
        with np.load(index) as fields:
            arrays = dict(fields)
        if damage == "offsets":
            np.savez(index.open("wb"), **arrays | {"offsets": arrays["offsets"] + 10**6})
        elif damage == "counts":
            np.savez(index.open("wb"), **arrays | {"sizes": arrays["sizes"][:1]})
        else:
            place = data.index(b"0.jpg1.jpg")
            index.write_bytes(
                {
                    "empty": b"",
                    "text": b"hello",
                    "cut": data[: len(data) // 2],
                    "bit": data[:place] + b"7" + data[place + 1 :],
                    "pickle": pickle.dumps(arrays),
                }[damage]
            )
        assert contents(TarSource(shard)) == expected
        assert len(scans) == 2
        TarSource(shard)
        assert len(scans) == 2

    def test_the_cache_folder_is_used_where_the_shard_lies_read_only(
        self, two_shards: Path, scans: list[str], cache: Path
    ) -> None:
        (two_shards / "08.tar.clove-index").mkdir()  # in the way, even for the super-user
        expected = contents(TarSource(two_shards / "08.tar"))
        assert contents(TarSource(two_shards / "08.tar")) == expected
        assert len(scans) == 1
        assert len(list((cache / "clove-ssl" / "shards").iterdir())) == 1
        assert len(list(two_shards.iterdir())) == 3  # and no half-written file

    def test_without_any_writable_place_the_shard_is_scanned_each_time(
        self, two_shards: Path, scans: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (two_shards / "08.tar.clove-index").mkdir()
        for impossible in (str(two_shards / "09.tar"), "relative"):
            monkeypatch.setenv("XDG_CACHE_HOME", impossible)
            assert len(TarSource(two_shards / "08.tar")) == 3
        assert len(scans) == 2


def test_real_shards_hold_their_photos(tmp_path: Path, data_folder: Path) -> None:
    folder = data_folder / "pretrain"
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    for shard in folder.glob("*.tar"):
        (tmp_path / shard.name).symlink_to(shard)  # so that index files are written here
    source = TarSource(tmp_path / "pretrain-{000000..000005}.tar")
    assert (len(source), source.ignored, source.damaged) == (13_301, 0, ())
    rows = (folder / "pretrain-index.tsv").read_text().splitlines()
    sizes = {}
    for row in rows[1:]:
        key, shard, _, _, width, height, *_ = row.split("\t")
        sizes[key] = (3, int(height), int(width))
    for index in range(0, len(source), 400):
        key = Path(source.name(index).partition(":")[2]).stem
        assert decode(source.read(index), max_pixels=10**6).shape == sizes[key]


def test_encoded_images_pass_through_untouched(tmp_path: Path) -> None:
    data = encode(photo(), "JPEG")
    (tmp_path / "a.jpg").write_bytes(data)
    write_tar(tmp_path / "s.tar", member("a.jpg", data))
    assert FolderSource(tmp_path).read(0) == TarSource(tmp_path / "s.tar").read(0) == data
