"""Sources of images: what they list, in which order, and how they refuse."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from builders.files.denied_folders import deny_listing
from builders.files.odd_files import write_odd_folder
from builders.files.photos import save_photos
from builders.files.small_sources import contents, names, write, write_two_shards

from clove_ssl.config.pretraining import DataConfig
from clove_ssl.data import sources
from clove_ssl.data.decode import DecodeError, decode
from clove_ssl.data.names import NameTable
from clove_ssl.data.sources import (
    FolderSource,
    ImageSource,
    JoinedSource,
    ListSource,
    TarSource,
    open_source,
)
from clove_ssl.errors import UserError


@pytest.fixture
def two_shards(tmp_path: Path) -> Path:
    """Folder with shards 08 and 09 of three images each."""
    write_two_shards(tmp_path)
    return tmp_path


class TestFolders:
    def test_images_are_found_at_any_depth_and_sorted_by_path(self, tmp_path: Path) -> None:
        write(tmp_path, "b.JPG", "a/z.png", "a/b/c.Tiff", "a.webp", "notes.txt", "a/data.json")
        source = FolderSource(tmp_path)
        assert names(source) == ["a.webp", "a/b/c.Tiff", "a/z.png", "b.JPG"]
        assert contents(source) == [name.encode() for name in names(source)]
        assert source.ignored == 2

    def test_an_odd_folder_is_listed_without_loss_or_repetition(self, tmp_path: Path) -> None:
        odd = write_odd_folder(tmp_path / "odd")
        source = FolderSource(tmp_path / "odd")
        assert names(source) == sorted(odd.good + odd.bad)

    def test_every_bad_file_of_an_odd_folder_is_reported(self, tmp_path: Path) -> None:
        odd = write_odd_folder(tmp_path / "odd")
        source, bad = FolderSource(tmp_path / "odd"), []
        for index in range(len(source)):
            try:
                decode(source.read(index), max_pixels=10**8)
            except (DecodeError, OSError):
                bad.append(source.name(index))
        assert bad == odd.bad

    def test_real_names_win_over_links_and_first_links_over_later_ones(
        self, tmp_path: Path
    ) -> None:
        write(tmp_path, "in/z/real.jpg", "outside/one.jpg", "outside/deep/two.jpg")
        root = tmp_path / "in"
        (root / "a_link").symlink_to("z")
        (root / "a.jpg").symlink_to("z/real.jpg")
        (root / "c").symlink_to(tmp_path / "outside")
        (root / "b").symlink_to(tmp_path / "outside" / "deep")
        (root / "y.jpg").symlink_to(tmp_path / "outside" / "one.jpg")
        assert names(FolderSource(root)) == ["b/two.jpg", "c/one.jpg", "z/real.jpg"]

    def test_two_links_to_one_file_elsewhere_count_once(self, tmp_path: Path) -> None:
        write(tmp_path, "elsewhere/content-123", "in/own.jpg")
        for name in ("b.jpg", "a.jpg"):
            (tmp_path / "in" / name).symlink_to(tmp_path / "elsewhere" / "content-123")
        assert names(FolderSource(tmp_path / "in")) == ["a.jpg", "own.jpg"]

    def test_a_link_upwards_ends(self, tmp_path: Path) -> None:
        write(tmp_path, "in/a.jpg", "beside.jpg")
        (tmp_path / "in" / "up").symlink_to("..")
        assert names(FolderSource(tmp_path / "in")) == ["a.jpg", "up/beside.jpg"]

    def test_dangling_links_stay_and_fail_on_reading(self, tmp_path: Path) -> None:
        (tmp_path / "a.jpg").symlink_to("gone.jpg")
        (tmp_path / "b.jpg").symlink_to("gone.jpg")
        source = FolderSource(tmp_path)
        assert names(source) == ["a.jpg", "b.jpg"]
        with pytest.raises(FileNotFoundError):
            source.read(0)

    def test_a_pipe_is_refused_instead_of_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.jpg")
        with pytest.raises(OSError, match="not a regular file"):
            FolderSource(tmp_path).read(0)

    def test_names_that_are_no_unicode_are_read(self, tmp_path: Path) -> None:
        path = os.path.join(os.fsencode(tmp_path), b"caf\xe9.jpg")
        try:
            with open(path, "wb") as file:
                file.write(b"coffee")
        except OSError:
            pytest.skip("this file system knows Unicode names only")
        source = pickle.loads(pickle.dumps(FolderSource(tmp_path)))
        assert source.read(0) == b"coffee"
        assert os.fsencode(source.name(0)) == b"caf\xe9.jpg"

    def test_a_folder_given_relative_survives_a_change_of_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(tmp_path, "in/a.jpg")
        monkeypatch.chdir(tmp_path)
        source = FolderSource("in")
        monkeypatch.chdir("/")
        assert source.read(0) == b"in/a.jpg"

    def test_folders_without_images_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"holds no images \(0 other files\)"):
            FolderSource(tmp_path)
        write(tmp_path, "a.txt", "b.txt")
        with pytest.raises(UserError, match=r"holds no images \(2 other files\)"):
            FolderSource(tmp_path)
        write(tmp_path, "0.tar", "1.tar")
        with pytest.raises(UserError, match=r"2 tar files.*/\*\.tar"):
            FolderSource(tmp_path)
        with pytest.raises(UserError, match="does not exist"):
            FolderSource(tmp_path / "nowhere")

    def test_a_folder_that_cannot_be_listed_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(tmp_path, "a.jpg", "secret/b.jpg")
        deny_listing(tmp_path / "secret", monkeypatch)
        with pytest.raises(UserError, match="secret: Permission denied"):
            FolderSource(tmp_path)


class TestLists:
    def test_paths_are_relative_to_the_list_and_keep_their_order(self, tmp_path: Path) -> None:
        write(tmp_path, "in/b.jpg", "in/a file.png", "out.jpg")
        absolute = tmp_path / "out.jpg"
        text = f"\ufeff# a comment\nb.jpg\r\n\n  a file.png  \n../out.jpg\n{absolute}\nb.jpg"
        (tmp_path / "in" / "list.txt").write_text(text, encoding="utf-8")
        source = ListSource(tmp_path / "in" / "list.txt")
        assert names(source) == ["b.jpg", "a file.png", "../out.jpg", str(absolute), "b.jpg"]
        assert contents(source)[1:4] == [b"in/a file.png", b"out.jpg", b"out.jpg"]

    def test_all_missing_files_are_reported_at_once(self, tmp_path: Path) -> None:
        write(tmp_path, "there.jpg", "folder/x.jpg")
        lines = ["there.jpg", "folder", *(f"gone{number}.jpg" for number in range(7))]
        (tmp_path / "list.txt").write_text("\n".join(lines))
        with pytest.raises(UserError, match="8 of the 9 files") as caught:
            ListSource(tmp_path / "list.txt")
        assert "gone3.jpg" in str(caught.value)
        assert "gone4.jpg" not in str(caught.value)

    def test_what_is_no_list_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "empty.txt").write_text("\n# nothing yet\n")
        with pytest.raises(UserError, match="lists no files"):
            ListSource(tmp_path / "empty.txt")
        (tmp_path / "binary").write_bytes(bytes(100))
        with pytest.raises(UserError, match="not a text file"):
            ListSource(tmp_path / "binary")
        write(tmp_path, "one.jpg")
        with pytest.raises(UserError, match=f"single image.*--data {tmp_path}"):
            ListSource(tmp_path / "one.jpg")
        with pytest.raises(UserError, match="does not exist"):
            ListSource(tmp_path / "nowhere.txt")


def _read_all(source: ImageSource, repeats: int) -> list[bytes]:
    return [data for _ in range(repeats) for data in contents(source)]


class TestProcesses:
    @pytest.fixture
    def sources(self, two_shards: Path) -> list[ImageSource]:
        write(two_shards, "in/a.jpg", "in/b.jpg")
        (two_shards / "list.txt").write_text("in/b.jpg\n")
        tar = TarSource(two_shards / "*.tar")
        tar.read(0)  # so that a file is open already
        return [FolderSource(two_shards / "in"), ListSource(two_shards / "list.txt"), tar]

    def test_pickled_sources_work_in_a_fresh_process(self, sources: list[ImageSource]) -> None:
        program = (
            "import pickle, sys\n"
            "sources = pickle.load(sys.stdin.buffer)\n"
            "everything = [[s.read(i) for i in range(len(s))] for s in sources]\n"
            "pickle.dump(everything, sys.stdout.buffer)\n"
        )
        command = [sys.executable, "-c", program]
        answer = subprocess.run(command, input=pickle.dumps(sources), capture_output=True)
        assert answer.returncode == 0, answer.stderr.decode()
        assert pickle.loads(answer.stdout) == [contents(source) for source in sources]

    def test_forked_processes_do_not_disturb_each_other(self, sources: list[ImageSource]) -> None:
        tar = sources[-1]
        with multiprocessing.get_context("fork").Pool(3) as pool:
            jobs = [pool.apply_async(_read_all, (tar, 100)) for _ in range(3)]
            mine = _read_all(tar, 100)
            assert all(job.get() == mine for job in jobs)

    def test_pickling_costs_little_more_than_the_names(self, tmp_path: Path) -> None:
        write(tmp_path, "a.jpg")
        source = FolderSource(tmp_path)
        many = [f"n{number:08d}/image_{number:08d}.jpg" for number in range(100_000)]
        source._names = NameTable.of(many)
        assert len(pickle.dumps(source)) < sum(map(len, many)) + 8 * len(many) + 1000
        assert pickle.loads(pickle.dumps(source)).name(54_321) == many[54_321]


class TestOpening:
    def test_the_kind_of_source_follows_from_the_path(self, two_shards: Path) -> None:
        write(two_shards, "in/a.jpg")
        (two_shards / "list.txt").write_text("in/a.jpg")
        for path, kind in {
            "in": FolderSource,
            "list.txt": ListSource,
            "08.tar": TarSource,
            "{08..09}.tar": TarSource,
            "*.tar": TarSource,
        }.items():
            assert type(open_source(DataConfig(source=str(two_shards / path)))) is kind

    def test_a_tilde_is_the_home_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(tmp_path, "in/a.jpg")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert names(open_source(DataConfig(source="~/in"))) == ["a.jpg"]

    def test_a_relative_place_is_named_with_the_folder_it_was_looked_for_in(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(UserError, match=f"photos does not exist in {tmp_path}"):
            open_source(DataConfig(source="photos"))

    @pytest.mark.parametrize(
        ("path", "message"),
        [
            ("nowhere", "does not exist.*--data scenes"),
            ("nowhere.tar", r"No file matches .*nowhere\.tar"),
            ("{0..3}.tar", r"No file matches .*/0\.tar \(4 shards"),
            ("only_tars", r"give a pattern.*only_tars/\*\.tar"),
            ("void.txt", "lists no files"),
            ("s.tar.gz", "compressed"),
            ("photo.jpg", "single image"),
            ("photos.zip", "is a zip archive"),
        ],
    )
    def test_mistakes_get_an_answer(self, tmp_path: Path, path: str, message: str) -> None:
        write(tmp_path, "only_tars/0.tar", "photo.jpg")
        (tmp_path / "void.txt").write_text("")
        (tmp_path / "s.tar.gz").write_bytes(b"\x1f\x8b\x08 and so on")
        (tmp_path / "photos.zip").write_bytes(b"PK\x03\x04" + bytes(50))
        with pytest.raises(UserError, match=message):
            open_source(DataConfig(source=str(tmp_path / path)))

    def test_built_in_scenes_are_images(self) -> None:
        source = open_source(DataConfig(source="scenes", scenes_count=3, scenes_size=64))
        assert len(source) == 3
        assert decode(source.read(2), max_pixels=10**6).shape == (3, 64, 64)


def test_a_name_table_is_a_sequence_of_its_names() -> None:
    table = NameTable.of(["a", "", "größe/图.jpg", "\udce9"])
    assert list(table) == ["a", "", "größe/图.jpg", "\udce9"]
    joined = NameTable.join([table, NameTable.of([]), NameTable.of(["z"])])
    assert list(joined) == [*table, "z"]
    assert joined[-1] == "z"
    with pytest.raises(IndexError):
        joined[5]


def test_images_follow_each_other_in_the_order_of_their_sources(tmp_path: Path) -> None:
    save_photos(tmp_path / "b", 2)
    save_photos(tmp_path / "a", 3)
    data = DataConfig(source=str(tmp_path / "b"), more=(str(tmp_path / "a"),))
    source = pickle.loads(pickle.dumps(open_source(data)))  # as a worker gets it
    assert isinstance(source, JoinedSource)
    names = [source.name(index) for index in range(len(source))]
    assert [Path(name).parent.name for name in names] == ["b", "b", "a", "a", "a"]
    assert len(set(names)) == 5
    assert all(source.read(i) == Path(name).read_bytes() for i, name in enumerate(names))


def test_a_list_that_is_too_long_is_not_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "a.jpg", "b.jpg")
    (tmp_path / "list.txt").write_text("a.jpg\nb.jpg\n")
    monkeypatch.setattr(sources, "LARGEST_LIST", 5)
    with pytest.raises(UserError, match="more than 5 bytes"):
        ListSource(tmp_path / "list.txt")
