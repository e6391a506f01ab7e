"""Text: how alike two pieces are."""

import random

import pytest

from tenure.core.text import share


@pytest.mark.parametrize(
    "before, after, part",
    [
        (b"", b"", 0.0),
        (b"", b"abc", 0.0),
        (b"abcdefghij", b"abcdefghij", 1.0),
        (b"abcdefghij", b"abcdeXghij", 0.9),
        (b"abcdefgh", b"abcdefghij", 0.8),
        (b"cdefghij", b"abcdefghij", 0.8),
        (b"abcdefghij", b"0123456789", 0.0),
    ],
)
def test_the_share_is_what_both_begin_and_end_with(before: bytes, after: bytes, part: float) -> None:
    assert share(before, after) == pytest.approx(part)


def test_the_share_of_long_texts_is_exact_where_it_matters() -> None:
    drawn = random.Random(1)
    for _ in range(200):
        before = drawn.randbytes(1000)
        at = drawn.randrange(1001)
        added = drawn.randbytes(drawn.randrange(1, 60))
        after = before[:at] + added + before[at:]
        # What is put between may begin as the rest does, so a few bytes more may be shared.
        assert 0 <= share(before, after) * len(after) - 1000 <= 8
