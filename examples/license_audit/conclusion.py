"""From what was read to a finding: claims of metadata, texts and sources, weighed against each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from examples.license_audit.conversation import Conversation
from examples.license_audit.licences import CLASSIFIERS, UNKNOWN, expression, ids_of, named
from examples.license_audit.reading import Header
from examples.license_audit.records import Confidence, Evidence, Finding

MAX_TEXT = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A line and what it may mean: one of `ids` if it is open, all of an `expression` if it is one."""

    file: str
    line: int
    text: str
    ids: tuple[str, ...] = ()
    expression: str = ""

    def evidence(self) -> Evidence:
        """Return the claim as a line of the report."""
        says = self.expression or (self.ids[0] if len(self.ids) == 1 else "")
        return Evidence(file=self.file, line=self.line, text=_short(self.text), says=says)


def conclude(found: Conversation, /) -> Finding:
    """Return the finding that the conversation supports so far."""
    notes: list[str] = []
    stated = list(_stated(found, notes))
    texts = [
        Claim(file=path, line=match["line"], text=match["text"], ids=(match["spdx"],))
        for path in found.texts
        for match in found.licences_in(path)
    ]
    mentions = list(_mentioned(found))
    spdx = _guess(stated, texts, mentions)
    confidence = _confidence(spdx, stated, texts, notes)
    notes.extend(_troubles(found))
    claims = [*stated, *texts, *mentions]
    evidence = sorted({claim.evidence() for claim in claims}, key=lambda one: (one.file, one.line, one.says))
    name, _, version = found.dist.rpartition("-")
    return Finding(
        name=next((one["text"] for one in found.fields("name")), name),
        version=next((one["text"] for one in found.fields("version")), version),
        spdx=spdx,
        confidence=confidence,
        evidence=tuple(evidence),
        notes=tuple(dict.fromkeys(notes)),
    )


def _stated(found: Conversation, notes: list[str]) -> Iterator[Claim]:
    """What the metadata says, the plainest first."""
    file = found.metadata_file

    def claim(header: Header, ids: tuple[str, ...], expression_: str = "") -> Claim:
        return Claim(file=file, line=header["line"], text=header["text"], ids=ids, expression=expression_)

    for header in found.fields("license-expression"):
        known = expression(header["text"])
        if known is None:
            notes.append(f"the License-Expression in line {header['line']} is no SPDX expression")
        yield claim(header, ids_of(known) if known else (), known or "")
    for header in found.fields("license"):
        yield claim(header, named(header["text"]), expression(header["text"]) or "")
    for header in found.fields("classifier"):
        if header["text"] in CLASSIFIERS:
            yield claim(header, CLASSIFIERS[header["text"]])
        elif header["text"].startswith("License :: Other/"):
            notes.append(f"the classifier in line {header['line']} names no licence that has an SPDX id")
            yield claim(header, ())


def _mentioned(found: Conversation) -> Iterator[Claim]:
    for mention in found.mentions or ():
        known = expression(re.sub(r".*SPDX-License-Identifier:|[#*/\"']", "", mention["text"]).strip())
        ids = ids_of(known) if known else ()
        yield Claim(file=mention["path"], line=mention["line"], text=mention["text"], ids=ids, expression=known or "")


def _guess(stated: list[Claim], texts: list[Claim], mentions: list[Claim]) -> str:
    declared = next((claim.expression for claim in stated if claim.expression), "")
    if declared:
        return declared
    # What leaves open which (a classifier "BSD License") is decided by what does not.
    certain = {claim.ids[0] for claim in (*stated, *texts) if len(claim.ids) == 1}
    open_ = [tuple(one for one in claim.ids if one in certain) or claim.ids for claim in stated if claim.ids]
    if meant := dict.fromkeys(one for ids in open_ for one in ids):
        return _joined(list(meant), " OR ")
    if held := dict.fromkeys(claim.ids[0] for claim in texts):
        return _joined(list(held), " AND ")
    return next((claim.expression for claim in mentions if claim.expression), UNKNOWN)


def _joined(ids: list[str], word: str) -> str:
    return word.join(sorted(ids))


def _confidence(spdx: str, stated: list[Claim], texts: list[Claim], notes: list[str]) -> Confidence:
    if spdx == UNKNOWN:
        return "none"
    chosen = {_base(one) for one in ids_of(spdx)}
    said = [claim for claim in stated if claim.ids]
    held = {_base(claim.ids[0]) for claim in texts}
    against = [claim for claim in said if not chosen & {_base(one) for one in claim.ids}]
    notes.extend(f"line {claim.line} of the metadata says otherwise: {' or '.join(claim.ids)}" for claim in against)
    if held and not chosen & held:
        notes.append(f"the licence text says otherwise: {' and '.join(sorted(held))}")
        return "low"
    if against:
        return "low"
    return "high" if said and chosen <= held else "medium"


def _base(spdx: str) -> str:
    """The licence without what a text alone cannot tell: only this version, or later ones too."""
    return spdx.removesuffix("-only").removesuffix("-or-later")


def _troubles(found: Conversation) -> Iterator[str]:
    """What was wrong with what was read."""
    for path, why in sorted(found.failed.items()):
        yield f"{path}: {_short(why)}" if path else _short(why)
    for path, pages in sorted(found.pages.items()):
        if not any(page["lines"] for page in pages):
            yield f"{path} is empty"
        if any(page["encoding"] != "utf-8" for page in pages):
            yield f"{path} is not UTF-8"
        if any(page.get("cut") for page in pages):
            yield f"{path} is too large to be read whole"
    if not found.texts:
        yield "there is no licence file"


def _short(text: str) -> str:
    first = " ".join(text.split())
    return first if len(first) <= MAX_TEXT else first[: MAX_TEXT - 1] + "…"
