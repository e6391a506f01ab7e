"""What the machine tells the SQLite store: which boot this is, and what kind of file system a path is on."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_NETWORK = frozenset(
    {
        *("nfs", "nfs3", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "ncpfs", "afs", "9p", "ceph", "lustre"),
        *("glusterfs", "beegfs", "gpfs", "orangefs", "pvfs2", "davfs", "davfs2", "webdav"),
        *("fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.glusterfs", "fuse.ceph", "fuse.davfs"),
        *("fuse.curlftpfs", "fuse.smbnetfs", "fuse.goofys", "fuse.juicefs", "fuse.blobfuse", "fuse.mount-s3"),
    }
)
_VOLATILE = frozenset({"tmpfs", "ramfs", "devtmpfs"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine as found.

    `boot` names this boot. Where there is no /proc it is empty: then leases end by time only, and every open moves
    store time forward to the wall clock if that is ahead. `mounts` is the text of /proc/mounts; empty where there is
    none, and then no file system is refused.
    """

    boot: str
    mounts: str

    def file_system(self, path: str) -> str:
        """Return the type of the file system a path is on, empty if it cannot be known."""
        real = os.path.realpath(path)
        best, found = -1, ""
        for line in self.mounts.splitlines():
            parts = line.split(" ")
            if len(parts) < 3:
                continue
            point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), parts[1])
            inside = real == point or real.startswith(point.rstrip("/") + "/")
            # Of two mounts on one point the later one covers the other.
            if inside and len(point) >= best:
                best, found = len(point), parts[2]
        return found


def this_host() -> Host:
    """Return the machine that this process runs on."""
    return Host(boot=_read("/proc/sys/kernel/random/boot_id").strip(), mounts=_read("/proc/mounts"))


def is_network(file_system: str) -> bool:
    """Return whether a file system is shared by machines that do not share memory, which WAL needs."""
    return file_system in _NETWORK


def is_volatile(file_system: str) -> bool:
    """Return whether a file system lives in memory, so that nothing on it survives a power loss."""
    return file_system in _VOLATILE


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
