"""What a conversation has brought to light so far: the results of the calls, sorted by what they were asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Self

from examples.license_audit.reading import LICENCE_NAME, Header, headers
from tenure.core.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage

MAX_TEXTS = 8
MAX_PAGES = 3

_TELLS = ("licen", "copyright", "permission is", "redistribution", "warrant", "public domain")


@dataclass(slots=True, kw_only=True)
class Conversation:
    """Results by tool; `failed` are error texts by path, "" being the distribution itself."""

    dist: str
    asked: bool = False
    metadata: dict[str, Any] | None = None
    files: list[str] = field(default_factory=list)
    pages: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    matches: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    mentions: list[dict[str, Any]] | None = None
    failed: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, messages: Sequence[Message], /) -> Self:
        """Return what the messages hold; the prompt ends in the id of the distribution."""
        calls: dict[str, ToolCall] = {}
        found = cls(dist="")
        for message in messages:
            match message:
                case UserMessage(parts=parts) if not found.dist:
                    found.dist = parts[-1].text.split()[-1].strip(".`")
                case AssistantMessage():
                    calls.update({call.id: call for call in message.calls})
                case ToolMessage(parts=results):
                    for result in results:
                        found._take(calls[result.call_id], result.content, failed=result.is_error)
                case _:
                    pass
        return found

    def _take(self, call: ToolCall, content: Any, *, failed: bool) -> None:
        self.asked = True
        path = str(call.arguments.get("path", ""))
        if failed:
            self.failed.setdefault(path, str(content))
            if call.name == "find_mentions":
                self.mentions = []
            return
        match call.name:
            case "read_metadata":
                self.metadata = content
            case "list_files":
                self.files = [file["path"] for file in content]
            case "read_license":
                self.pages.setdefault(path, []).append(content)
            case "match_text":
                self.matches[path] = content
            case "find_mentions":
                self.mentions = content
            case other:
                message = f"a result of {other!r} is none that this model asks for"
                raise ValueError(message)

    @property
    def metadata_file(self) -> str:
        """Return the path of the metadata, "" if there is none."""
        if self.metadata is not None:
            return str(self.metadata["path"])
        return next((path for path in self.files if PurePosixPath(path).name in ("METADATA", "PKG-INFO")), "")

    @property
    def headers(self) -> list[Header]:
        """Return the fields of the metadata, however they came to be read."""
        if self.metadata is not None:
            return list(self.metadata["headers"])
        lines = [line["text"] for page in self.pages.get(self.metadata_file, ()) for line in page["lines"]]
        return list(headers("\n".join(lines)))

    def fields(self, name: str, /) -> list[Header]:
        """Return the fields of one name that say anything."""
        return [one for one in self.headers if one["field"] == name and one["text"] not in ("", "UNKNOWN")]

    @property
    def texts(self) -> list[str]:
        """Return the paths that should hold licence texts: the declared ones, listed or not, then those so named."""
        home = (self.files or [self.metadata_file])[0].partition("/")[0]
        declared = [one["text"] for one in self.fields("license-file")]
        listed = set(self.files)
        paths: dict[str, None] = {}
        for name in declared:
            where = [f"{home}/licenses/{name}", f"{home}/{name}"]
            paths[next((path for path in where if path in listed), where[0])] = None
        named = [path for path in self.files if LICENCE_NAME.match(PurePosixPath(path).name)]
        paths.update(dict.fromkeys(named))
        return list(paths)[:MAX_TEXTS]

    def speaks(self, path: str, /) -> bool:
        """Return whether what was read of a file sounds like a licence."""
        seen = " ".join(line["text"] for page in self.pages.get(path, ()) for line in page["lines"]).casefold()
        return any(tell in seen for tell in _TELLS)

    def going_on(self, path: str, /) -> int | None:
        """Return the line from which a file should be read on, None if enough of it was seen."""
        read = self.pages.get(path, [])
        return read[-1].get("next") if read and len(read) < MAX_PAGES else None

    def licences_in(self, path: str, /) -> Iterator[dict[str, Any]]:
        """Yield the licences that a text surely holds; next to a whole text, a part of another one is its own part."""
        found = self.matches.get(path, [])
        enough = 1.0 if any(match["score"] == 1.0 for match in found) else 0.75
        yield from (match for match in found if match["score"] >= enough)
