"""What is known of common licences: how metadata names them, and sentences by which their texts are recognised."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

UNKNOWN = "NOASSERTION"
"""What SPDX writes where nothing can be said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Sentences that a licence's text holds, as words in lower case; one of `without` makes it another licence."""

    spdx: str
    phrases: tuple[str, ...]
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A licence that a text looks like: the share of its sentences that were found, and where the first one stands."""

    spdx: str
    score: float
    line: int


_GRANTED = "permission is hereby granted free of charge to any person obtaining a copy of this software and"
_RIGHTS = "to deal in the software without restriction including without limitation the rights to use copy modify"
_BSD = (
    "redistribution and use in source and binary forms with or without modification are permitted provided",
    "redistributions of source code must retain the above copyright notice",
    "redistributions in binary form must reproduce the above copyright notice",
    "as is and any express or implied warranties including but not limited to",
)
_NO_ENDORSEMENT = "may be used to endorse or promote products derived from this software without specific prior written"
_APACHE_NOTICE = "licensed under the apache license version 2 0"
_LESSER = "gnu lesser general public license"
_LIBRARY = "gnu library general public license"
_AFFERO = "gnu affero general public license"
_GPL = "everyone is permitted to copy and distribute verbatim copies of this license document"

FINGERPRINTS: tuple[Fingerprint, ...] = (
    Fingerprint(
        spdx="MIT",
        phrases=(
            _GRANTED,
            _RIGHTS,
            "notice shall be included in all copies or substantial portions of the software",
            "as is without warranty of any kind express or implied",
        ),
    ),
    Fingerprint(
        spdx="MIT-0",
        phrases=(
            _GRANTED,
            _RIGHTS,
            "and to permit persons to whom the software is furnished to do so the software is provided as is",
        ),
        without=("notice shall be included in all copies or substantial portions of the software",),
    ),
    Fingerprint(spdx="BSD-3-Clause", phrases=(*_BSD, _NO_ENDORSEMENT)),
    Fingerprint(spdx="BSD-2-Clause", phrases=_BSD, without=(_NO_ENDORSEMENT,)),
    Fingerprint(
        spdx="Apache-2.0",
        phrases=(
            "apache license version 2 0 january 2004",
            "terms and conditions for use reproduction and distribution",
            "grant of copyright license subject to the terms and conditions of this license",
            "grant of patent license subject to the terms and conditions of this license",
        ),
    ),
    Fingerprint(spdx="Apache-2.0", phrases=(_APACHE_NOTICE,), without=("apache license version 2 0 january 2004",)),
    Fingerprint(
        spdx="PSF-2.0",
        phrases=(
            "python software foundation license version 2",
            "this license agreement is between the python software foundation psf and the individual or organization",
        ),
    ),
    Fingerprint(
        spdx="MPL-2.0", phrases=("this source code form is subject to the terms of the mozilla public license",)
    ),
    Fingerprint(spdx="AGPL-3.0-only", phrases=(f"{_AFFERO} version 3 19 november 2007", _GPL)),
    Fingerprint(spdx="LGPL-3.0-only", phrases=(f"{_LESSER} version 3 29 june 2007", _GPL)),
    Fingerprint(spdx="LGPL-2.1-only", phrases=(f"{_LESSER} version 2 1 february 1999", _GPL)),
    Fingerprint(spdx="LGPL-2.0-only", phrases=(f"{_LIBRARY} version 2 june 1991", _GPL)),
    Fingerprint(spdx="GPL-3.0-only", phrases=("gnu general public license version 3 29 june 2007", _GPL)),
    Fingerprint(spdx="GPL-2.0-only", phrases=("gnu general public license version 2 june 1991", _GPL)),
    Fingerprint(
        spdx="ISC",
        phrases=(
            "distribute this software for any purpose with or without fee is hereby granted",
            "provided that the above copyright notice and this permission notice appear in all copies",
            "as is and the author disclaims all warranties with regard to this software",
        ),
    ),
    Fingerprint(
        spdx="0BSD",
        phrases=(
            "distribute this software for any purpose with or without fee is hereby granted",
            "as is and the author disclaims all warranties with regard to this software",
        ),
        without=("provided that the above copyright notice and this permission notice appear in all copies",),
    ),
    Fingerprint(
        spdx="Unlicense",
        phrases=(
            "this is free and unencumbered software released into the public domain",
            "anyone is free to copy modify publish use compile sell or distribute this software",
        ),
    ),
    Fingerprint(spdx="CC0-1.0", phrases=("cc0 1 0 universal",)),
    Fingerprint(spdx="Zlib", phrases=("altered source versions must be plainly marked as such",)),
    Fingerprint(spdx="BSL-1.0", phrases=("boost software license version 1 0",)),
)

_OSI = "License :: OSI Approved :: "
CLASSIFIERS: dict[str, tuple[str, ...]] = {
    f"{_OSI}MIT License": ("MIT",),
    f"{_OSI}MIT No Attribution License (MIT-0)": ("MIT-0",),
    f"{_OSI}BSD License": ("BSD-2-Clause", "BSD-3-Clause"),
    f"{_OSI}Apache Software License": ("Apache-2.0",),
    f"{_OSI}Python Software Foundation License": ("PSF-2.0",),
    f"{_OSI}Mozilla Public License 2.0 (MPL 2.0)": ("MPL-2.0",),
    f"{_OSI}ISC License (ISCL)": ("ISC",),
    f"{_OSI}The Unlicense (Unlicense)": ("Unlicense",),
    f"{_OSI}zlib/libpng License": ("Zlib",),
    f"{_OSI}Boost Software License 1.0 (BSL-1.0)": ("BSL-1.0",),
    f"{_OSI}GNU General Public License (GPL)": ("GPL-2.0-only", "GPL-3.0-only"),
    f"{_OSI}GNU General Public License v2 (GPLv2)": ("GPL-2.0-only",),
    f"{_OSI}GNU General Public License v2 or later (GPLv2+)": ("GPL-2.0-or-later",),
    f"{_OSI}GNU General Public License v3 (GPLv3)": ("GPL-3.0-only",),
    f"{_OSI}GNU General Public License v3 or later (GPLv3+)": ("GPL-3.0-or-later",),
    f"{_OSI}GNU Lesser General Public License v2 (LGPLv2)": ("LGPL-2.0-only", "LGPL-2.1-only"),
    f"{_OSI}GNU Lesser General Public License v2 or later (LGPLv2+)": ("LGPL-2.0-or-later", "LGPL-2.1-or-later"),
    f"{_OSI}GNU Lesser General Public License v3 (LGPLv3)": ("LGPL-3.0-only",),
    f"{_OSI}GNU Lesser General Public License v3 or later (LGPLv3+)": ("LGPL-3.0-or-later",),
    f"{_OSI}GNU Library or Lesser General Public License (LGPL)": ("LGPL-2.1-only", "LGPL-3.0-only"),
    f"{_OSI}GNU Affero General Public License v3": ("AGPL-3.0-only",),
    f"{_OSI}GNU Affero General Public License v3 or later (AGPLv3+)": ("AGPL-3.0-or-later",),
    "License :: CC0 1.0 Universal (CC0 1.0) Public Domain Dedication": ("CC0-1.0",),
}
"""What a classifier may mean; two ids where it leaves open which."""

_NAMES: dict[str, tuple[str, ...]] = {
    "mit": ("MIT",),
    "the mit license": ("MIT",),
    "mit license": ("MIT",),
    "bsd": ("BSD-2-Clause", "BSD-3-Clause"),
    "bsd license": ("BSD-2-Clause", "BSD-3-Clause"),
    "bsd 2 clause": ("BSD-2-Clause",),
    "bsd 2 clause license": ("BSD-2-Clause",),
    "simplified bsd": ("BSD-2-Clause",),
    "bsd 3 clause": ("BSD-3-Clause",),
    "bsd 3 clause license": ("BSD-3-Clause",),
    "new bsd": ("BSD-3-Clause",),
    "modified bsd": ("BSD-3-Clause",),
    "apache": ("Apache-2.0",),
    "apache 2": ("Apache-2.0",),
    "apache 2 0": ("Apache-2.0",),
    "apache license 2 0": ("Apache-2.0",),
    "apache license version 2 0": ("Apache-2.0",),
    "apache software license": ("Apache-2.0",),
    "psf": ("PSF-2.0",),
    "psfl": ("PSF-2.0",),
    "python software foundation license": ("PSF-2.0",),
    "mpl 2 0": ("MPL-2.0",),
    "mozilla public license 2 0": ("MPL-2.0",),
    "isc license": ("ISC",),
    "the unlicense": ("Unlicense",),
    "gplv2": ("GPL-2.0-only",),
    "gplv3": ("GPL-3.0-only",),
    "gpl 3": ("GPL-3.0-only",),
    "lgplv3": ("LGPL-3.0-only",),
    "lgpl": ("LGPL-2.1-only", "LGPL-3.0-only"),
}


def words(text: str, /) -> str:
    """Return the text as its words: lower case, one space between two, nothing else."""
    return " ".join(re.findall(r"[^\W_]+", text.casefold()))


def expression(text: str, /) -> str | None:
    """Return an SPDX expression in its canonical form, None if it is none."""
    try:
        return canonicalize_license_expression(text)
    except InvalidLicenseExpression:
        return None


def ids_of(expression_: str, /) -> tuple[str, ...]:
    """Return the licence ids of a valid expression, in order."""
    found = re.findall(r"[A-Za-z0-9.\-]+", re.sub(r"\bWITH\s+\S+", "", expression_))
    return tuple(dict.fromkeys(one for one in found if one not in {"AND", "OR"}))


def named(text: str, /) -> tuple[str, ...]:
    """Return what a free text in a License field may mean: an expression's ids, a known name's, or a whole text's."""
    if (found := expression(text)) is not None:
        return ids_of(found)
    if (known := _NAMES.get(words(text))) is not None:
        return known
    whole = [match for match in recognise(text) if match.score == 1.0]
    return tuple(dict.fromkeys(match.spdx for match in whole))


def recognise(text: str, /, *, at_least: float = 0.5) -> list[Match]:
    """Return the licences that a text looks like, the surest first."""
    flat, starts, lines = _flat(text)
    found: dict[str, Match] = {}
    for one in FINGERPRINTS:
        if any(phrase in flat for phrase in one.without):
            continue
        at = [where for phrase in one.phrases if (where := flat.find(phrase)) >= 0]
        score = round(len(at) / len(one.phrases), 2)
        if score < at_least or (one.spdx in found and found[one.spdx].score >= score):
            continue
        found[one.spdx] = Match(spdx=one.spdx, score=score, line=lines[bisect_right(starts, min(at)) - 1])
    return sorted(found.values(), key=lambda match: (-match.score, match.spdx))


def _flat(text: str) -> tuple[str, Sequence[int], Sequence[int]]:
    """All words in one line, and for the lines that have any: where each begins in it, and its number."""
    parts: list[str] = []
    starts: list[int] = []
    lines: list[int] = []
    length = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if not (part := words(line)):
            continue
        parts.append(part)
        starts.append(length)
        lines.append(number)
        length += len(part) + 1
    return " ".join(parts), starts, lines
