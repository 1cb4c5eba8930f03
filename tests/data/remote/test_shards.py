"""Tar shards behind URLs: the same images as from local shards, by ranges of bytes."""

from __future__ import annotations

import builtins
import multiprocessing
import pickle
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest
from builders.files.small_sources import contents, member, names, write_tar, write_two_shards

from clove_ssl.data.remote.shards import RemoteTarSource, find_remote_shards
from clove_ssl.data.remote.storage import Patience, RemoteReader, may_pass
from clove_ssl.data.sources import TarSource, source_warnings
from clove_ssl.errors import UserError

fsspec = pytest.importorskip("fsspec")
memory = pytest.importorskip("fsspec.implementations.memory")
AT_ONCE = Patience(attempts=3, first_wait=0.0)


class Flaky(memory.MemoryFileSystem):
    """Memory whose requests fail ``failures`` times each before they work, and are noted."""

    protocol = "flaky"
    cachable = False
    failures: ClassVar[int] = 0
    error: ClassVar[Exception] = TimeoutError("too slow")
    requests: ClassVar[Counter[Any]] = Counter()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("flaky://", "memory://")))

    def info(self, path: str, **options: Any) -> Any:
        self._note("info", path)
        return super().info(path, **options)

    def cat_file(self, path: str, start: Any = None, end: Any = None, **options: Any) -> Any:
        self._note(start, end, path)
        return super().cat_file(path, start, end, **options)

    def _note(self, *request: Any) -> None:
        self.requests[request] += 1
        if self.requests[request] <= self.failures:
            raise self.error


@pytest.fixture(autouse=True)
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An empty memory file system, and ``flaky://`` that sees the same files."""
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    monkeypatch.setattr(Flaky, "failures", 0)
    monkeypatch.setattr(Flaky, "error", TimeoutError("too slow"))
    monkeypatch.setattr(Flaky, "requests", Counter())
    yield fsspec.filesystem("memory")
    memory.MemoryFileSystem.store.clear()
    memory.MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture
def two_shards(tmp_path: Path, storage: Any) -> Path:
    """Shards 08 and 09 of three images each, in a folder and in memory."""
    write_two_shards(tmp_path)
    for shard in tmp_path.iterdir():
        storage.pipe(f"/bucket/{shard.name}", shard.read_bytes())
    return tmp_path


def members(source: TarSource) -> list[str]:
    return [name.rpartition(":")[2] for name in names(source)]


class TestReading:
    @pytest.mark.parametrize("pattern", ["*.tar", "{08,09}.tar", "0?.tar", "{08,0*}.tar", "09.tar"])
    @pytest.mark.parametrize("protocol", ["memory", "file"])
    def test_a_url_gives_what_the_local_shards_give(
        self, two_shards: Path, protocol: str, pattern: str
    ) -> None:
        root = "memory://bucket" if protocol == "memory" else f"file://{two_shards}"
        there, here = RemoteTarSource(f"{root}/{pattern}"), TarSource(two_shards / pattern)
        assert len(there) == len(here)
        assert members(there) == members(here)
        assert contents(there) == contents(here)
        assert names(there)[0].startswith(f"{protocol}://")
        assert there.read(-1) == here.read(-1)
        with pytest.raises(IndexError):
            there.read(len(here))

    def test_odd_members_are_judged_as_in_local_shards(self, tmp_path: Path) -> None:
        long = "/".join(["ordner größe"] * 30) + "/图.png"
        path = write_tar(
            tmp_path / "s.tar",
            member("folder", type=tarfile.DIRTYPE),
            member(long, b"pixels" * 1000),
            member("empty.png"),
            member("/etc/absolute.jpg", b"absolute"),
            member("soft.jpg", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
            member("label.cls", b"3"),
            member("last.jpg", b"last"),
        )
        there, here = RemoteTarSource(f"file://{path}"), TarSource(path)
        assert members(there) == members(here) == [long, "empty.png", "last.jpg"]
        assert contents(there) == contents(here)
        assert there.ignored == here.ignored == 2
        assert list(source_warnings(there)) == list(source_warnings(here))

    def test_cut_shards_are_judged_as_local_ones(self, tmp_path: Path, storage: Any) -> None:
        images = [member(f"{n}.jpg", bytes([n]) * 700) for n in range(3)]
        whole = write_tar(tmp_path / "whole.tar", *images).read_bytes()
        for length in range(700, 3 * 1536 + 1024, 300):
            path = tmp_path / f"{length}.tar"
            path.write_bytes(whole[:length])
            storage.pipe(f"/{length}.tar", whole[:length])
            if length < 512 + 700:
                with pytest.raises(UserError, match="before the end of its first image"):
                    RemoteTarSource(f"memory://{length}.tar")
                continue
            there, here = RemoteTarSource(f"memory://{length}.tar"), TarSource(path)
            assert members(there) == members(here)
            assert len(there.damaged) == len(here.damaged)

    def test_only_headers_are_fetched_for_the_index(self, tmp_path: Path, storage: Any) -> None:
        images = [member(f"{n}.jpg", bytes(100_000)) for n in range(20)]
        storage.pipe("/big.tar", write_tar(tmp_path / "big.tar", *images).read_bytes())
        source = RemoteTarSource("flaky://big.tar")
        ranges = [request for request in Flaky.requests.elements() if request[0] != "info"]
        assert len(ranges) <= len(source) + 3
        assert sum(end - start for start, end, _ in ranges) < 20 * 100_000 / 10
        Flaky.requests.clear()
        assert source.read(7) == bytes(100_000)
        assert Flaky.requests.total() == 1

    def test_a_source_travels_to_other_processes_and_threads(self, two_shards: Path) -> None:
        source = RemoteTarSource(f"file://{two_shards}/*.tar")
        expected = contents(source)
        copy = pickle.loads(pickle.dumps(source))
        assert copy._reader._storage is None
        assert contents(copy) == expected
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(copy.read, list(range(6)) * 20)) == expected * 20
        with multiprocessing.get_context("fork").Pool(2) as workers:
            assert workers.map(source.read, range(6)) == expected

    def test_a_forked_process_makes_its_own_connection(
        self, two_shards: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reader = RemoteReader([f"file://{two_shards}/08.tar"], AT_ONCE)
        first = reader._connection()
        assert reader._connection() is first
        monkeypatch.setattr("clove_ssl.data.remote.storage.os.getpid", lambda: -1)
        reader._connection()
        assert reader._storage is not None
        assert reader._storage[0] == -1


class TestTrouble:
    def test_requests_that_fail_twice_are_repeated_and_the_first_is_told(
        self, two_shards: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        Flaky.failures = 2
        patience = Patience(attempts=3, first_wait=0.0)
        source = RemoteTarSource("flaky://bucket/{08,09}.tar", patience=patience)
        assert contents(source) == contents(TarSource(two_shards / "*.tar"))
        assert set(Flaky.requests.values()) == {3}
        assert capsys.readouterr().out.count("does not answer") == 1

    @pytest.mark.usefixtures("two_shards")
    def test_a_listing_that_fails_twice_is_repeated(self, monkeypatch: pytest.MonkeyPatch) -> None:
        answers: list[Any] = [TimeoutError(), RuntimeError(), ["/bucket/08.tar"]]

        def listing(self: Flaky, path: str) -> list[str]:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return list(answer)

        monkeypatch.setattr(Flaky, "glob", listing)
        assert find_remote_shards("flaky://b*/*.tar", AT_ONCE) == ["flaky:///bucket/08.tar"]
        answers[:] = [PermissionError("forbidden")]
        with pytest.raises(UserError, match=r"Cannot read flaky://b\*/\*\.tar: forbidden"):
            find_remote_shards("flaky://b*/*.tar", AT_ONCE)

    def test_in_the_end_a_reader_gives_up_with_an_os_error(self, two_shards: Path) -> None:
        source = RemoteTarSource("flaky://bucket/08.tar", patience=AT_ONCE)
        Flaky.failures = 1000
        Flaky.requests.clear()
        with pytest.raises(OSError, match="too slow"):
            source.read(0)
        assert Flaky.requests.total() == AT_ONCE.attempts
        Flaky.error = RuntimeError("connection lost")  # drivers have kinds of their own
        with pytest.raises(OSError, match=r"08\.tar: RuntimeError: connection lost"):
            source.read(1)
        with pytest.raises(UserError, match=r"Cannot read flaky://bucket/09\.tar: .*lost"):
            RemoteTarSource("flaky://bucket/09.tar", patience=AT_ONCE)

    def test_what_cannot_pass_is_not_repeated(self, two_shards: Path) -> None:
        source = RemoteTarSource("flaky://bucket/08.tar", patience=AT_ONCE)
        Flaky.failures, Flaky.error = 1000, PermissionError("forbidden")
        Flaky.requests.clear()
        with pytest.raises(PermissionError):
            source.read(0)
        assert Flaky.requests.total() == 1

    @pytest.mark.parametrize(("status", "passes"), [(500, True), (429, True), (403, False)])
    def test_the_status_of_an_answer_tells_whether_trouble_passes(
        self, status: int, passes: bool
    ) -> None:
        error = RuntimeError("answer of a server")
        error.status = status  # type: ignore[attr-defined]
        assert may_pass(error) == passes

    def test_waits_double_and_are_spread(self) -> None:
        patience = Patience(first_wait=0.5)
        assert [patience.wait(n, 0) for n in (1, 2, 3, 4, 5)] == [0.5, 1.0, 2.0, 4.0, 8.0]
        assert patience.wait(1, 8) == 0.75

    def test_a_shard_that_shrank_or_comes_whole_is_noticed(
        self, two_shards: Path, storage: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = RemoteTarSource("flaky://bucket/08.tar", patience=AT_ONCE)
        monkeypatch.setattr(Flaky, "cat_file", lambda *_, **__: bytes(10**4))
        with pytest.raises(OSError, match="does not give out ranges"):
            source.read(0)
        monkeypatch.undo()
        storage.pipe("/bucket/08.tar", b"short")
        with pytest.raises(OSError, match="shorter"):
            RemoteReader(["memory://bucket/08.tar"], AT_ONCE).read(0, 512, 10)


class TestIndexFiles:
    def index_requests(self, url: str) -> int:
        """Ranges that were fetched to open ``url``."""
        Flaky.requests.clear()
        RemoteTarSource(url)
        return sum(request[0] != "info" for request in Flaky.requests)

    def test_an_index_is_made_once_and_kept_in_the_cache(
        self, two_shards: Path, cache: Path
    ) -> None:
        assert self.index_requests("flaky://bucket/*.tar") > 0
        assert len(list((cache / "clove-ssl" / "shards").iterdir())) == 2
        assert self.index_requests("flaky://bucket/*.tar") == 0

    def test_a_replaced_shard_of_the_same_size_is_indexed_anew(
        self, two_shards: Path, storage: Any
    ) -> None:
        first = RemoteTarSource("memory://bucket/08.tar")
        other = (two_shards / "08.tar").read_bytes().replace(b"0.cls", b"9.jpg")
        storage.pipe("/bucket/08.tar", fix_checksum(other, b"9.jpg"))
        assert len(RemoteTarSource("memory://bucket/08.tar")) == len(first) + 1

    def test_without_a_version_nothing_is_kept(
        self, two_shards: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        size = (two_shards / "08.tar").stat().st_size
        monkeypatch.setattr(Flaky, "info", lambda *_, **__: {"type": "file", "size": size})
        assert self.index_requests("flaky://bucket/08.tar") > 0
        assert self.index_requests("flaky://bucket/08.tar") > 0
        assert not list(cache.iterdir())

    def test_an_unknown_length_is_refused(
        self, two_shards: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Flaky, "info", lambda *_, **__: {"type": "file", "size": None})
        with pytest.raises(UserError, match="without saying how long"):
            RemoteTarSource("flaky://bucket/08.tar")


def fix_checksum(tar: bytes, name: bytes) -> bytes:
    """The archive with the header of ``name`` valid again."""
    data, start = bytearray(tar), tar.index(name)
    data[start + 148 : start + 156] = b" " * 8
    data[start + 148 : start + 156] = b"%06o\0 " % sum(data[start : start + 512])
    return bytes(data)


class TestMistakes:
    def test_a_missing_extra_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == "fsspec"]:
            monkeypatch.delitem(sys.modules, name)
        real = builtins.__import__

        def without_fsspec(name: str, *args: Any, **options: Any) -> Any:
            if name.startswith("fsspec"):
                raise ImportError(name)
            return real(name, *args, **options)

        monkeypatch.setattr(builtins, "__import__", without_fsspec)
        with pytest.raises(UserError, match=r'pip install "clove-ssl\[stream\]"'):
            RemoteTarSource("memory://bucket/08.tar")

    def test_a_missing_driver_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(url: str) -> None:
            raise ImportError("Install s3fs to access S3")

        monkeypatch.setattr("fsspec.core.url_to_fs", refuse)
        with pytest.raises(UserError, match=r"Install s3fs to access S3\. Type: pip install s3fs"):
            find_remote_shards("s3://bucket/a.tar", AT_ONCE)
        with pytest.raises(UserError, match="Install the package it names"):
            find_remote_shards("dropbox://a.tar", AT_ONCE)

    def test_an_unknown_protocol_is_refused(self) -> None:
        with pytest.raises(UserError, match=r"Protocol not known: s4\. Expected s3://"):
            RemoteTarSource("s4://bucket/a.tar")

    @pytest.mark.usefixtures("two_shards")
    def test_missing_shards_are_named(self) -> None:
        with pytest.raises(UserError, match=r"There is no memory://bucket/10\.tar\. Check"):
            RemoteTarSource("memory://bucket/{08..12}.tar")
        with pytest.raises(UserError, match=r"No file matches memory://bucket/x\*\.tar"):
            RemoteTarSource("memory://bucket/{08,x*}.tar")
        with pytest.raises(UserError, match="is a folder"):
            RemoteTarSource("memory://bucket")

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (b"", "is not a tar file"),
            (b"hello\n" * 500, "is not a tar file"),
            (b"\x1f\x8b" + bytes(1000), "is compressed.*gunzip"),
        ],
    )
    def test_what_is_no_plain_tar_is_refused(self, storage: Any, data: bytes, message: str) -> None:
        storage.pipe("/a.tar", data)
        with pytest.raises(UserError, match=message):
            RemoteTarSource("memory://a.tar")

    def test_shards_without_images_are_refused(self, tmp_path: Path) -> None:
        path = write_tar(tmp_path / "none.tar", member("a.txt", b"text"))
        with pytest.raises(UserError, match="1 shard holds no images"):
            RemoteTarSource(f"file://{path}")

    def test_a_question_mark_belongs_to_a_web_address(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            "clove_ssl.data.remote.shards.connect", lambda url, patience: (None, url)
        )
        urls = ["https://host/0.tar?key=1", "https://host/1.tar?key=1"]
        assert find_remote_shards("https://host/{0,1}.tar?key=1", AT_ONCE) == urls


class TestHelp:
    """What a protocol needs is said when a storage cannot be opened."""

    @pytest.mark.parametrize(
        ("url", "words"),
        [
            ("reference://x/a.tar", "FSSPEC_REFERENCE_FO"),
            ("github://x/a.tar", "github://OWNER:REPOSITORY@BRANCH"),
            ("jupyter://x/a.tar", "FSSPEC_JUPYTER_URL"),
            ("dbfs://x/a.tar", "FSSPEC_DBFS_TOKEN"),
            ("zip://a.tar", "the archive that a shard is in"),
            ("blockcache://a.tar", "protocol"),
            ("generic://a.tar", "FSSPEC_GENERIC_OPTION"),
        ],
    )
    def test_missing_options_are_named(self, url: str, words: str) -> None:
        with pytest.raises(UserError, match=r"cannot be (opened|read)") as caught:
            RemoteTarSource(url, patience=AT_ONCE)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_a_server_that_refuses_is_asked_twice_more_and_named(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        pauses: list[float] = []
        monkeypatch.setattr("clove_ssl.data.remote.storage.time.sleep", pauses.append)
        with pytest.raises(UserError, match=r"Connection refused.*ftp needs a server that answers"):
            RemoteTarSource("ftp://127.0.0.1:1/a.tar")
        assert len(pauses) == 2
        assert pauses[1] == 2 * pauses[0]
        told = capsys.readouterr().out
        assert told.startswith("warning ftp://127.0.0.1:1/a.tar does not answer (")
        assert told.endswith("it is asked up to 2 times more, for about 2 s.\n")
        assert told.count("\n") == 1

    def test_a_server_that_is_silent_is_asked_until_patience_ends(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def silent(url: str) -> None:
            raise TimeoutError("no answer in time")

        pauses: list[float] = []
        monkeypatch.setattr("clove_ssl.data.remote.storage.time.sleep", pauses.append)
        monkeypatch.setattr("fsspec.core.url_to_fs", silent)
        with pytest.raises(UserError, match="no answer in time"):
            RemoteTarSource("ftp://127.0.0.1:1/a.tar", patience=Patience(attempts=4))
        assert len(pauses) == 3
        assert capsys.readouterr().out.count("asked up to 3 times more") == 1

    def test_missing_credentials_are_not_asked_for_again(self) -> None:
        class NoCredentialsError(Exception):
            pass

        assert not may_pass(NoCredentialsError())

    def test_a_shard_that_failed_for_good_is_asked_once_from_then_on(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reader = RemoteReader(["flaky://bucket/a.tar"], AT_ONCE)
        with memory.MemoryFileSystem().open("/bucket/a.tar", "wb") as file:
            file.write(bytes(1000))
        monkeypatch.setattr(Flaky, "failures", 10**9)
        for offset, tries in ((0, 3), (10, 1), (20, 1)):
            with pytest.raises(OSError, match="too slow"):
                reader.read(0, offset, 5)
            assert Flaky.requests[offset, offset + 5, "flaky://bucket/a.tar"] == tries
        monkeypatch.setattr(Flaky, "failures", 0)
        assert reader.read(0, 30, 5) == bytes(5)
        monkeypatch.setattr(Flaky, "failures", 2)
        assert reader.read(0, 40, 5) == bytes(5)
