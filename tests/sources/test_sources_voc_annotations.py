"""VOC annotations: what is written is read, and whatever is wrong or malicious in one fails alone."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from devkit import Devkit, thing
from hypothesis import given, settings
from hypothesis import strategies as st

from mmload.errors import SampleError
from mmload.sources.voc_annotations import parse_annotation


@pytest.mark.parametrize(
    ("xml", "message"),
    [
        ("<annotation><object>", "malformed XML"),
        ("", "malformed XML"),
        ("<html></html>", "web page"),
        ("<annotation><object></object></annotation>", "object 1 has no name"),
        (f"<annotation>{thing('cat', None)}</annotation>", "no bndbox"),
        (f"<annotation>{thing('cat', ('a', 1, 2, 3))}</annotation>", "xmin is 'a'"),
        (f"<annotation>{thing('cat', (1, 1, 'nan', 3))}</annotation>", "xmax is 'nan'"),
        (f"<annotation>{thing('cat', (1, 1, 2))}</annotation>", r"ymax is \[\]"),
        (f"<annotation>{thing('cat', (4, 1, 3, 2))}</annotation>", "has no area"),
        (f"<annotation>{thing('cat', (0, 1, 0, 2))}</annotation>", "has no area"),
        (f"<annotation>{thing('cat', (20, 1, 30, 2))}</annotation>", "leaves the 8 x 6 image"),
        (f"<annotation>{thing('unicorn')}</annotation>", "'unicorn' is not one of the classes: aeroplane"),
        (f"<annotation>{thing('cat', difficult='x')}</annotation>", "difficult is 'x'"),
        (f"<annotation>{thing('cat', extra='<name>dog</name>')}</annotation>", "object 1 has the names 'cat', 'dog'"),
        ("<annotation><bndbox><xmin>1</xmin></bndbox></annotation>", "a bndbox is in no <object>"),
        ("<a></a>", "not an <annotation>"),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]><annotation>&b;</annotation>", "document type"),
        ("<!DOCTYPE a SYSTEM 'file:///etc/passwd'><annotation/>", "document type"),
        ("<annotation>&b;</annotation>", "malformed XML"),
    ],
)
def test_a_wrong_annotation_fails_alone(devkit: Devkit, xml: str, message: str) -> None:
    devkit.add("bad")
    devkit.annotate("bad", xml)
    devkit.add("good", thing("cat"))
    devkit.list("train", "bad", "good")
    split = devkit.splits()["train"]
    with pytest.raises(SampleError, match=message) as caught:
        split.read(0)
    assert caught.value.sample == "VOC2007/JPEGImages/bad.jpg"
    assert int(split.read(1).fields["counts"]) == 1


CAT = ("cat", False, (1, 1, 3, 4))
BOXES = "<bndbox>{}</bndbox><bndbox>{}</bndbox>".format(
    *("".join(f"<{side}>{value}</{side}>" for side in ("xmin", "ymin", "xmax", "ymax")) for value in (1, 2))
)


@pytest.mark.parametrize(
    ("xml", "expected"),
    [
        (f"<object><name>cat</name>{BOXES}</object>", [("cat", False, (1, 1, 1, 1)), ("cat", False, (2, 2, 2, 2))]),
        (f"<objects>{thing('cat')}</objects>{thing('dog')}", [CAT, ("dog", False, (1, 1, 3, 4))]),
        (thing("cat").replace("object", "Object").replace("name", "Name"), [CAT]),
        (thing("cat", ("1.0", " 1 ", "3e0", "+4"), difficult="1.0"), [("cat", True, (1, 1, 3, 4))]),
        (thing("cat", difficult=""), [CAT]),
        (thing("cat", extra="<name>cat</name>"), [CAT]),
        (thing("cat", extra="<part><name>head</name><bndbox><xmin>9</xmin></bndbox></part>"), [CAT]),
    ],
)
def test_annotation_as_other_tools_write_it_keeps_every_object(xml: str, expected: list[object]) -> None:
    assert list(parse_annotation(f"<annotation>{xml}</annotation>".encode()).objects) == expected


def test_billion_laughs_and_outside_files_are_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("cat")
    laughs = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 12))
    attacks = [
        f'<!DOCTYPE annotation [<!ENTITY l0 "ha">{laughs}]><annotation>&l11;</annotation>',
        f'<!DOCTYPE annotation [<!ENTITY s SYSTEM "{secret.as_uri()}">]>'
        "<annotation><object><name>&s;</name></object></annotation>",
        f'<!DOCTYPE annotation SYSTEM "{secret.as_uri()}"><annotation/>',
    ]
    for attack in attacks:
        with pytest.raises(ValueError, match="document type"):
            parse_annotation(attack.encode())


pieces = st.sampled_from(
    ["<annotation>", "</annotation>", "<object>", "</object>", "<name>", "</name>", "cat", "<bndbox>", "</bndbox>",
     "<xmin>", "1", "</xmin>", "&amp;", "&x;", "<!DOCTYPE a>", "<![CDATA[", "]]>", "<?x y?>", "\x00", "é"]
)  # fmt: skip


@settings(max_examples=400)
@given(st.lists(pieces, max_size=14).map("".join).map(str.encode) | st.binary(max_size=60))
def test_any_xml_is_objects_or_a_clean_error(data: bytes) -> None:
    for text in (data, b"<annotation>" + data + b"</annotation>"):
        with contextlib.suppress(ValueError):
            assert isinstance(parse_annotation(text).objects, tuple)


names = st.text(st.characters(exclude_characters="<>&\r", exclude_categories=("Cs", "Cc")), min_size=1).filter(
    lambda text: text == text.strip()
)
sides = st.floats(-1e6, 1e6)


@given(st.lists(st.tuples(names, st.booleans(), st.tuples(sides, sides, sides, sides)), max_size=5))
def test_what_is_written_is_read(objects: list) -> None:
    xml = "".join(thing(name, tuple(map(repr, box)), int(flag)) for name, flag, box in objects)
    assert list(parse_annotation(f"<annotation>{xml}</annotation>".encode()).objects) == objects


@pytest.mark.parametrize(
    ("xml", "size"),
    [
        ("<size><width>8</width><height>6</height><depth>3</depth></size>", (6, 8)),
        ("<size><width> 8.0 </width><height>6</height></size>", (6, 8)),
        ("<size><width>0</width><height>0</height></size>", None),
        ("<size><width>8</width></size>", None),
        ("<size><width>8</width><height>?</height></size>", None),
        ("<size><width>inf</width><height>nan</height></size>", None),
        ("<object><name>a</name><size><width>8</width><height>6</height></size></object>", None),
        ("", None),
    ],
)
def test_the_size_of_an_annotation_is_what_it_says_or_unknown(xml: str, size: tuple[int, int] | None) -> None:
    assert parse_annotation(f"<annotation>{xml}</annotation>".encode()).size == size
