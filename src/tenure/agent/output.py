"""What a tool returned, as it is kept: text, JSON, images and files, cut where it is too long for a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tenure.codec import to_json_value
from tenure.core import canonical
from tenure.core.messages import Media, Message, ToolMessage, ToolResult
from tenure.errors import InvalidContent
from tenure.lease import Lease

INLINE_BYTES = 32 * 1024
"""Up to here an image or a file stands in the journal itself; a larger one is a blob of the run beside it."""
MAX_MEDIA_BYTES = canonical.MAX_COMMIT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A tool's result as it is written: `blobs` hold what `media` and `whole` name by digest."""

    content: Any
    media: tuple[Media, ...] = ()
    whole: str = ""
    blobs: tuple[bytes, ...] = ()


def output_of(
    value: Any, returns: Any = Any, /, *, limit: int, cap: int | None, redacted: Callable[[Any], Any]
) -> Output:
    """Return what is kept of a value; InvalidContent for what cannot be stored.

    A Media, or a list with some in it, is taken apart: what else is in the list is the content. Content of more than
    `cap` characters is cut, and the whole of it becomes a blob.
    """
    found, media = _taken_apart(value)
    # Before it becomes text: fields are known by their names, and a text has none.
    plain = redacted(to_json_value(found, returns if not media else Any))
    data = canonical.encode(plain, limit=limit if cap is None else max(limit, MAX_MEDIA_BYTES))
    content, whole, blobs = plain, "", list[bytes]()
    if cap is not None:
        text = plain if isinstance(plain, str) else data.decode()
        if len(text) > cap:
            text = str(redacted(text))  # before it is cut: half a secret has not the form of one
            blobs.append(text.encode())
            whole = canonical.digest(blobs[0])
            note = f"[cut: {len(text):,} characters in all; the whole result is blob {whole} of the run]"
            content = f"{text[:cap]}\n{note}"
    stored = []
    for one in media:
        entry, blob = _stored(one, redacted)
        stored.append(entry)
        blobs += [blob] if blob is not None else []
    return Output(content=content, media=tuple(stored), whole=whole, blobs=tuple(blobs))


def _taken_apart(value: Any) -> tuple[Any, list[Media]]:
    if isinstance(value, Media):
        return _shown(value), [value]
    if not isinstance(value, list | tuple) or not any(isinstance(item, Media) for item in value):
        return value, []
    media = [item for item in value if isinstance(item, Media)]
    rest = [to_json_value(item) for item in value if not isinstance(item, Media)]
    if not rest:
        return "\n".join(map(_shown, media)), media
    return (rest[0] if len(rest) == 1 else rest), media


def _shown(media: Media) -> str:
    """What stands for media where only text can stand."""
    where = media.url or f"{len(media.data):,} bytes"
    return f"[{' '.join(filter(None, (media.media_type, media.name)))}, {where}]"


def _stored(media: Media, redacted: Callable[[Any], Any]) -> tuple[Media, bytes | None]:
    if bool(media.data) == bool(media.url) or media.blob:
        message = "a Media has either data or a url; give it one of them"
        raise InvalidContent(message)
    if media.url:
        return replace(media, url=str(redacted(media.url)), name=str(redacted(media.name))), None
    data = media.data
    if media.media_type.startswith("text/") or media.media_type == "application/json":
        data = str(redacted(data.decode(errors="replace"))).encode()
    if len(data) > MAX_MEDIA_BYTES:
        message = f"media of {len(data)} bytes is over the limit of {MAX_MEDIA_BYTES}; keep it elsewhere, give its url"
        raise InvalidContent(message, size=len(data), limit=MAX_MEDIA_BYTES)
    found = replace(media, data=data, size=len(data), name=str(redacted(media.name)))
    if len(data) <= INLINE_BYTES:
        return found, None
    return replace(found, data=b"", blob=canonical.digest(data)), data


class Blobs:
    """The blobs of one run, read when a model is to be shown them and kept for the attempt."""

    def __init__(self, lease: Lease, *, keep: int = 32) -> None:
        self._lease = lease
        self._keep = keep
        self._read: dict[str, bytes] = {}

    async def filled(self, messages: Sequence[Message], /) -> tuple[Message, ...]:
        """Return the messages with the bytes of their media; CorruptRecord if the store has lost some."""
        return tuple([await self._message(message) for message in messages])

    async def _message(self, message: Message) -> Message:
        if not isinstance(message, ToolMessage) or not any(one.blob for part in message.parts for one in part.media):
            return message
        return ToolMessage(parts=tuple([await self._part(part) for part in message.parts]))

    async def _part(self, part: ToolResult) -> ToolResult:
        media = [replace(one, data=await self._bytes(one.blob)) if one.blob else one for one in part.media]
        return replace(part, media=tuple(media))

    async def _bytes(self, digest: str) -> bytes:
        if (data := self._read.get(digest)) is None:
            data = await self._lease.blob(digest)
            while len(self._read) >= self._keep:
                self._read.pop(next(iter(self._read)))
            self._read[digest] = data
        return data
