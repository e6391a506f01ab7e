"""The bytes of a record in the SQLite file: those of the canonical form, whichever encoder writes them."""

import json
from collections.abc import Callable, Iterator

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import to_json

from tenure import encoding
from tenure.codec import pack_run
from tenure.core import canonical
from tenure.core.run import GrantLine, Outcome, Request, Run, Status
from tenure.errors import InvalidContent
from tenure.stores._sqlite_record import read_record, write_record


@pytest.fixture(autouse=True, scope="module", params=[orjson.dumps, to_json], ids=["orjson", "pydantic"])
def encoder(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(encoding, "_encoder", lambda: request.param)
        yield


TEXTS = st.text(st.characters(codec=None), max_size=8) | st.sampled_from(
    ["", 'a"\\/', "\u2028\u2029\u0085", "\x00\x1f\x7f", "\ud800", "\U0001f600 é"]
)
NUMBERS = st.integers(-(10**15), 10**15) | st.sampled_from([0, 1, 2**53])
RUNS = st.builds(
    Run,
    **dict.fromkeys(("id", "kind", "code_version", "nonce", "epoch", "owner", "head", "parent", "input_digest"), TEXTS),
    **dict.fromkeys(("version", "attempt", "token", "lease_until_ms", "last_seq", "priority", "touch"), NUMBERS),
    **dict.fromkeys(("cancel_by_ms", "due_ms"), st.none() | NUMBERS),
    status=st.sampled_from(Status),
    requests=st.dictionaries(TEXTS, st.builds(Request, digest=TEXTS, expires_ms=st.none() | NUMBERS), max_size=2),
    wants=st.lists(TEXTS, max_size=2).map(tuple),
    tags=st.dictionaries(TEXTS, TEXTS, max_size=2),
    outcome=st.none() | st.builds(Outcome, code=TEXTS, message=TEXTS, result=TEXTS, by=TEXTS),
    grants=st.lists(
        st.builds(GrantLine, ordinal=NUMBERS, token=NUMBERS, owner=TEXTS, from_ms=NUMBERS, reason=TEXTS), max_size=2
    ).map(tuple),
)


def plainly(run: Run) -> bytes:
    fields = pack_run(run)
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    if not text.isascii():
        canonical.encode(fields)  # refuses what is not UTF-8, and what is too long
    return text.encode()


def said(write: Callable[[Run], bytes], run: Run) -> bytes | str:
    try:
        return write(run)
    except InvalidContent as error:
        return str(error)


@given(RUNS)
@settings(deadline=None, max_examples=300)
def test_i26_a_record_has_the_canonical_bytes_or_the_refusal_that_core_says(run: Run) -> None:
    written = said(write_record, run)
    assert written == said(plainly, run)
    if isinstance(written, bytes):
        assert read_record(run.id, written) == run


def test_the_fields_of_a_record_stand_in_the_order_of_their_names() -> None:
    names = list(pack_run(Run(id="a", kind="k")))
    assert names == sorted(Run.__dataclass_fields__)


def test_a_record_that_is_longer_than_content_may_be_is_written_if_it_is_ascii() -> None:
    size = canonical.MAX_COMMIT_BYTES
    long = Run(id="a", kind="k", parent="x" * size)
    assert write_record(long) == plainly(long)
    with pytest.raises(InvalidContent, match="over the limit"):
        write_record(Run(id="a", kind="k", parent="é" * size))
