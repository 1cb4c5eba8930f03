"""Files that are made to burn time, to run code or to surprise end in one message at once."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clove_ssl.config import files
from clove_ssl.config.plain_yaml import DEEPEST, LARGEST, MOST_ALIASES, MOST_VALUES, parse_yaml
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.errors import UserError


def laughs(link: str) -> str:
    """Ten levels, each of which names the one before nine times."""
    lines = ["a0: &a0 {x: 1}"]
    for level in range(1, 10):
        lines.append(f"a{level}: &a{level} {link % ', '.join([f'*a{level - 1}'] * 9)}")
    return "\n".join(lines)


BOMBS = {
    "merge keys": laughs("{<<: [%s]}"),
    "lists": laughs("[%s]"),
    "itself": "a: &a [*a]",
    "nothing": "a: *b",
    "open lists": "[" * (LARGEST - 1),
    "open mappings": "{a: " * (LARGEST // 5),
    "deep lines": "\n".join(" " * level + "a:" for level in range(300)),
    "aliases": "a: &a 1\nb: [" + "*a, " * (MOST_ALIASES + 1) + "]",
    "values": "[" + "1," * (MOST_VALUES + 1) + "]",
    "length": "a: " + "x" * LARGEST,
    "digits": "a: " + "9" * 5000,
    "half a number": "a: 0b_",
    "code": "a: !!python/object/apply:os.system [ls]",
    "dated": "a: !!timestamp 2020-99-99",
    "tagged number": "a: !!int x",
    "empty tag": "a: ! x",
    "list as a name": "? [a]\n: b",
    "zero byte": "a: \0",
    "twice": "epochs: 1\nepochs: 2",
    "twice inside": "data: {workers: 1, workers: 2}",
    "two documents": "a: 1\n---\nb: 2",
    "number": "5",
    "list": "[1, 2]",
}
SLOW = {
    "lines": "\n" * (LARGEST - 1),
    "comments": "# x\n" * (LARGEST // 5),
    "block": "out: |\n" + " x\n" * (LARGEST // 4),
    "quoted": 'out: "' + "x" * (LARGEST - 10) + '"',
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_is_more_than_a_config_is_refused_at_once(name: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(BOMBS[name])
    start = time.process_time()
    with pytest.raises(UserError, match=r"config\.yaml (is not a|has)"):
        files.load(PretrainConfig, path)
    assert time.process_time() - start < 1


@pytest.mark.parametrize("name", SLOW)
def test_the_longest_text_is_read_within_a_second(name: str) -> None:
    start = time.process_time()
    parse_yaml(SLOW[name], where="file")
    assert time.process_time() - start < 1


def test_dates_are_texts_and_merge_keys_are_names() -> None:
    text = "a: 2020-99-99\n<<: {b: 1}\nc: =\nd: [1, 2.5, yes, ~, .inf]"
    expected = {
        "a": "2020-99-99",
        "<<": {"b": 1},
        "c": "=",
        "d": [1, 2.5, True, None, float("inf")],
    }
    assert parse_yaml(text, where="file") == expected


def test_a_few_aliases_and_levels_are_welcome() -> None:
    deepest = "[" * DEEPEST + "]" * DEEPEST
    values = parse_yaml(f"a: &a {{b: 1}}\nc: *a\nd: {deepest[1:-1]}", where="file")
    assert values["c"] == {"b": 1}


def test_a_file_that_never_ends_is_read_to_its_limit_only() -> None:
    with pytest.raises(UserError, match="not a regular file"):
        files.read_values(Path("/dev/zero"))


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("epochs: 200", "epochs: 3.7"),
        ("epochs: 200", "epochs: true"),
        ("epochs: 200", "epochs: .inf"),
        ("epochs: 200", "epochs: []"),
        ("seed: 0", "seed: {}"),
        ("sync_norm: true", "sync_norm: 'no'"),
        ("sync_norm: true", "sync_norm: 1"),
        ("source: scenes", "source: [scenes]"),
        ("source: scenes", "source: ~"),
        ("source: scenes", "source: yes"),
        ("out: run", "out: 1.5.6: x"),
    ],
)
def test_a_value_of_another_type_is_refused_and_not_bent(
    line: str, wrong: str, tmp_path: Path
) -> None:
    text = files.to_yaml(PretrainConfig(out=Path("run")))
    assert f"{line}\n" in text
    with pytest.raises(UserError, match=r"config\.yaml is not a"):
        files.parse(PretrainConfig, text.replace(line, wrong, 1), where=tmp_path / "config.yaml")


def test_numbers_without_a_point_are_numbers() -> None:
    config = PretrainConfig(out=Path("run"))
    text = files.to_yaml(config).replace("trust: 0.001", "trust: 1e-3").replace("lr: 1.0", "lr: 1")
    assert files.parse(PretrainConfig, text, where=Path("file")) == config
    assert files.changed(config, {"epochs": 7.0}, where="here") == replace(config, epochs=7)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(key=st.sampled_from(["epochs", "data", "method", "probe", "out", "x"]), value=PLAIN)
def test_any_value_in_any_place_is_taken_or_refused_in_words(key: str, value: object) -> None:
    config = PretrainConfig(out=Path("run"))
    with suppress(UserError):  # and nothing else
        files.changed(config, {key: value}, where="here")


@settings(max_examples=60, deadline=None)
@given(
    st.text(alphabet="ab:-[]{}&*!|>'\"%@`#,?<= \n\t01.", max_size=60),
    st.integers(0, 400),
)
def test_any_damage_to_a_file_is_taken_or_refused_in_words(noise: str, place: int) -> None:
    text = files.to_yaml(PretrainConfig(out=Path("run")))
    damaged = text[:place] + noise + text[place + len(noise) // 2 :]
    with suppress(UserError):  # and nothing else
        files.parse(PretrainConfig, damaged, where=Path("file"))


@pytest.mark.parametrize("text", ["yes: 1\ntrue: 2", "1: a\n1.0: b"])
def test_a_key_that_comes_twice_in_other_words_is_named(text: str) -> None:
    with pytest.raises(UserError, match="comes twice in one place"):
        parse_yaml(text, where="file")


def test_the_end_of_a_long_file_of_foreign_letters_is_not_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"a: '{'é' * (LARGEST // 2)}'\nepochs: 3\n")
    assert path.stat().st_size > LARGEST
    assert files.read_values(path)["epochs"] == 3


@pytest.mark.parametrize("before", ["# ", "#  "])  # after one of them half a letter is read
def test_a_file_far_too_long_is_refused_for_its_length(before: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(before + "é" * 3 * LARGEST)
    with pytest.raises(UserError, match=f"more than {LARGEST:,} characters"):
        files.read_values(path)
    path.write_bytes(b"a: \xff" + bytes(5 * LARGEST))
    with pytest.raises(UserError, match="is not a YAML file: .* byte 0xff"):
        files.read_values(path)


@pytest.mark.parametrize("name", ["null", "7", "1.5", "true"])
def test_a_name_that_is_no_text_is_refused_in_words(name: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"out: run\nmethod: {{name: clove, {name}: 1}}\n")
    with pytest.raises(UserError, match=r"config\.yaml"):
        files.load(PretrainConfig, path)
