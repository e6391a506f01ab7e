"""What went wrong with a model call, told from the error alone, and whether asking again may help.

Any client's errors are read: by an HTTP status, by what the network says, by the names that clients give their own.
"""

from __future__ import annotations

import email.utils
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar

import anyio

from tenure.core import canonical
from tenure.errors import said
from tenure.retry import Retry, TryLater, of_the_attempt

T = TypeVar("T")

MESSAGE = 1024
TRANSIENT = frozenset({408, 409, 425, 429})
_NETWORK = frozenset(
    {"TransportError", "NetworkError", "APIConnectionError", "ModelConnectionError", "ModelUnavailableError"}
)
_TIMEOUT = frozenset({"TimeoutException", "APITimeoutError", "ModelTimeoutError"})

PATIENT = Retry(attempts=4, wait=1.0, factor=2.0, max_wait=60.0)
"""How often a model is asked by default: four times in all, after about 1, 2 and 4 s."""


class Sort(StrEnum):
    """What sort of trouble it is."""

    RATE_LIMIT = "rate_limit"
    PROVIDER = "provider"
    NETWORK = "network"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """An error of a model call. `retry_after` is what the provider asked for, in seconds; `message` is cut."""

    sort: Sort
    retryable: bool
    status: int | None = None
    code: str = ""
    retry_after: float | None = None
    message: str = ""


def classify(error: BaseException, /) -> Trouble:
    """Return what an error of a model call means; what it was raised from is looked at, too."""
    chain = list(_chain(error))
    status = next(filter(None, map(_status, chain)), None)
    names = {base.__name__ for found in chain for base in type(found).__mro__}
    if status is not None:
        sort, retryable = _by_status(status)
    elif isinstance(error, TimeoutError) or names & _TIMEOUT:
        sort, retryable = Sort.TIMEOUT, True
    elif any(isinstance(found, ConnectionError) for found in chain) or names & _NETWORK or "gaierror" in names:
        sort, retryable = Sort.NETWORK, True
    else:
        sort, retryable = Sort.OTHER, False
    return Trouble(
        sort=sort,
        retryable=retryable,
        status=status,
        code=next((code for found in chain if (code := _text(found, "provider_error_code", "code"))), ""),
        retry_after=next((s for found in chain if (s := _retry_after(found)) is not None), None),
        message=canonical.plain(said(error), MESSAGE),
    )


def _by_status(status: int) -> tuple[Sort, bool]:
    if status == 429:
        return Sort.RATE_LIMIT, True
    if status >= 500:
        return Sort.PROVIDER, True
    return (Sort.TIMEOUT if status == 408 else Sort.REFUSED), status in TRANSIENT


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was raised from, a few steps deep."""
    found: BaseException | None = error
    for _ in range(5):
        if found is None:
            return
        yield found
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)


def _status(error: BaseException) -> int | None:
    for holder in (error, getattr(error, "response", None)):
        for name in ("status_code", "status", "http_status"):
            value = getattr(holder, name, None)
            if type(value) is int and 400 <= value < 600:
                return value
    return None


def _text(error: BaseException, *names: str) -> str:
    values = (getattr(error, name, None) for name in names)
    return next((canonical.plain(value, 200) for value in values if isinstance(value, str)), "")


def _retry_after(error: BaseException) -> float | None:
    given = getattr(error, "retry_after", None)
    if isinstance(given, int | float) and type(given) is not bool:
        return max(0.0, float(given))
    for holder in (error, getattr(error, "response", None)):
        headers = getattr(holder, "headers", None)
        if isinstance(headers, Mapping):
            lower = {str(name).lower(): str(value) for name, value in headers.items()}
            if (found := _seconds(lower)) is not None:
                return found
    return None


def _seconds(headers: Mapping[str, str]) -> float | None:
    """The wait that headers ask for: milliseconds, seconds or a date."""
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        if (text := headers.get("retry-after")) is None:
            return None
        if text.strip().replace(".", "", 1).isdigit():
            return float(text)
        return max(0.0, (email.utils.parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None


def turned_away(error: Exception, /) -> bool:
    """Return whether a try of a question was refused before it was answered, so that it cost nothing.

    Of an answer that failed on its way, or of a provider's own trouble, nobody knows what it cost.
    """
    return isinstance(error, TryLater) or classify(error).sort in (Sort.RATE_LIMIT, Sort.REFUSED)


async def patiently(retry: Retry, fn: Callable[[], Awaitable[T]], /) -> T:
    """Return what `fn` returns, tried again where that may help, and not before the provider wants it.

    A provider that wants more than `retry.max_wait` seconds is not waited for: the run is put off by TryLater, and its
    worker is free. The last error is raised as it is.
    """
    from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_exponential, wait_random

    def again(error: BaseException) -> bool:
        return isinstance(error, retry.on) and of_the_attempt(error) is None and classify(error).retryable

    back_off = wait_exponential(multiplier=retry.wait, exp_base=retry.factor, max=retry.max_wait)
    jitter = wait_random(0, retry.wait / 2)

    def wait(state: Any) -> float:
        error = state.outcome.exception()
        asked = classify(error).retry_after or 0.0
        if asked > retry.max_wait:
            raise TryLater(after=asked) from error
        return max(asked, float(back_off(state) + jitter(state)))

    trying = AsyncRetrying(
        stop=stop_after_attempt(retry.attempts),
        wait=wait,
        retry=retry_if_exception(again),
        sleep=anyio.sleep,
        reraise=True,
    )
    return await trying(fn)
