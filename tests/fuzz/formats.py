"""Damage that gets past the checksums of a format, so that what is behind them is reached."""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from random import Random

from fuzz.mutations import ODD_VALUES, damaged, damaged_value

Damage = Callable[[bytes, Random], bytes]
_TAR_BLOCK = 512
_CHECKSUM = slice(148, 156)


def mostly(inner: Damage) -> Damage:
    """Damage of a format; in one case of three, or where the format is not there, of bytes."""

    def apply(data: bytes, chance: Random) -> bytes:
        if chance.random() < 0.33:
            return damaged(data, chance)
        try:
            return inner(data, chance)
        except Exception:  # a file that was damaged before
            return damaged(data, chance)

    return apply


def damaged_png(data: bytes, chance: Random) -> bytes:
    """Change the content of one chunk and correct its checksum."""
    chunks = _png_chunks(data)
    chosen = chance.randrange(len(chunks))
    kind, content = chunks[chosen]
    if kind == b"IDAT" and chance.random() < 0.7:
        content = zlib.compress(damaged(zlib.decompress(content), chance))
    else:
        content = damaged(content, chance)
    chunks[chosen] = (kind, content)
    if chance.random() < 0.1:
        chunks.insert(chance.randrange(len(chunks)), chance.choice(chunks))
    return data[:8] + b"".join(
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )


def _png_chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    if not data.startswith(b"\x89PNG"):
        raise ValueError("no PNG")
    chunks, place = [], 8
    while place + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        chunks.append((kind, data[place + 8 : place + 8 + length]))
        place += 12 + length
    return chunks


def damaged_zip(inner: Damage) -> Damage:
    """Change one member of an archive, whose checksum is then right again."""

    def apply(data: bytes, chance: Random) -> bytes:
        with zipfile.ZipFile(io.BytesIO(data)) as old:
            members = {info.filename: old.read(info) for info in old.infolist()}
        chosen = chance.choice(list(members))
        members[chosen] = inner(members[chosen], chance)
        if chance.random() < 0.1:
            del members[chance.choice(list(members))]
        new = io.BytesIO()
        method = chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
        with zipfile.ZipFile(new, "w", method) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return new.getvalue()

    return apply


def damaged_npy(data: bytes, chance: Random) -> bytes:
    """Change the header of an array: its type, its order or its shape."""
    length = struct.unpack_from("<H", data, 8)[0]
    header, rest = data[10 : 10 + length].decode("latin1"), data[10 + length :]
    types = ("'|O'", "'<U9999999'", "'<f8'", "'|V0'", "[('a', '<i4')]", "'<M8[ns]'", "'>c16'")
    shapes = ("(9999999999,)", "(-1,)", "(0,)", "()", "(2, 3, 4)", "(1" + ",1" * 60 + ")", "None")
    old = header[header.index("'descr': ") + 9 : header.index(", 'fortran")]
    if chance.random() < 0.5:
        header = header.replace(old, chance.choice(types))
    else:
        place = header.index("'shape': ") + 9
        header = header[:place] + chance.choice(shapes) + ", }\n"
    packed = header.encode("latin1")
    return data[:8] + struct.pack("<H", len(packed)) + packed + rest


def damaged_tar(data: bytes, chance: Random) -> bytes:
    """Change one header of an archive and correct its checksum."""
    headers = [
        place
        for place in range(0, len(data) - _TAR_BLOCK + 1, _TAR_BLOCK)
        if data[place + 257 : place + 262] == b"ustar"
    ]
    place = chance.choice(headers)
    block = bytearray(data[place : place + _TAR_BLOCK])
    first, last = chance.choice(
        ((0, 100), (100, 124), (124, 136), (156, 157), (157, 257), (345, 500))
    )
    if chance.random() < 0.5:
        changed = damaged(bytes(block[first:last]), chance)[: last - first]
        block[first:last] = changed.ljust(last - first, b"\0")
    else:
        values = (
            b"x",
            b"g",
            b"L",
            b"K",
            b"S",
            b"1",
            b"2",
            b"3",
            b"6",
            b"7777777777\0",
            b"\x80\xff",
        )
        value = chance.choice(values)[: last - first]
        block[first : first + len(value)] = value
    block[_CHECKSUM] = b" " * 8
    block[_CHECKSUM] = b"%06o\0 " % (sum(block) % 8**6)
    return data[:place] + bytes(block) + data[place + _TAR_BLOCK :]


def damaged_safetensors(data: bytes, chance: Random) -> bytes:
    """Change the header, whose length is then right again."""
    length = struct.unpack_from("<Q", data)[0]
    if length > len(data):
        raise ValueError("no safetensors")
    header = damaged_value(json.loads(data[8 : 8 + length]), chance)
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


_XML_ODD = (
    *(b"&lt;", b"&#0;", b"&a;", b"<object/>", b"<!--", b"]]>", b"<![CDATA[", b"nan", b"1e400"),
    *(b"<?xml version='1.0' encoding='utf-16'?>", b"-5", b"", b"\xc3\x28", b"<size><width>"),
)


def damaged_xml(data: bytes, chance: Random) -> bytes:
    """Change the text between two tags, or let entities multiply."""
    if chance.random() < 0.05:
        bomb = b'<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa">' + b"".join(
            b'<!ENTITY %c "%s">' % (98 + n, b"&%c;" % (97 + n) * 10) for n in range(9)
        )
        return data.replace(b"<annotation>", bomb + b"]><annotation>&j;", 1)
    tags = [place for place, byte in enumerate(data) if byte == ord(">")]
    place = chance.choice(tags) + 1
    end = data.find(b"<", place)
    odd = str(chance.choice(ODD_VALUES))[:400].encode("utf-8", "replace")
    return data[:place] + chance.choice((*_XML_ODD, odd)) + data[max(end, place) :]
