"""What a file lies on, and whether SQLite can keep its promises there."""

from __future__ import annotations

import os
from typing import Final

from penstock.core.finding import Finding, Level

NETWORK: Final = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "beegfs"),
        *("gpfs", "9p", "virtiofs", "vboxsf", "prl_fs", "drvfs", "davfs", "fuse.sshfs"),
        *("fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.rclone", "fuse.grpcfuse"),
    }
)
"""File systems over a network, or between a machine and its host: locks and shared memory, which
the log of SQLite needs, work there badly or only on one machine."""

OVERLAY: Final = frozenset({"overlay", "aufs", "fuse.fuse-overlayfs"})
VOLATILE: Final = frozenset({"tmpfs", "ramfs"})

MOUNTS: Final = "/proc/self/mountinfo"


def file_system(path: str) -> Finding:
    """What is to say about where this file lies."""
    try:
        with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as mounts:
            kind = kind_of(os.path.realpath(path), mounts.read())
    except OSError:
        return Finding(check="file_system", text="this system does not tell what the file lies on")
    return judged(kind)


def judged(kind: str) -> Finding:
    """What is said of a file system of this kind."""
    facts = {"file_system": kind}
    if kind in NETWORK:
        text = f"the file lies on {kind}, a network file system: locks are not safe there"
        step = "move the file to a local disk of one machine, and run all workers there"
    elif kind in OVERLAY:
        text = f"the file lies on {kind}, inside a container: it goes when the container goes"
        step = "put it on a volume: docker run -v jobs:/data, and sqlite:////data/jobs.db"
    elif kind in VOLATILE:
        text = f"the file lies on {kind}, in memory: it is gone after a restart of the machine"
        step = "move it to a disk, unless that is what you want"
    else:
        text = f"the file lies on {kind or 'an unknown file system'}"
        return Finding(check="file_system", text=text, facts=facts)
    return Finding(check="file_system", level=Level.WARNING, text=text, next_step=step, facts=facts)


def kind_of(path: str, mounts: str) -> str:
    """The type of the file system that a path is on: of the last, longest mount above it."""
    kind, longest = "", -1
    for line in mounts.splitlines():
        before, mark, after = line.partition(" - ")
        fields = before.split()
        if not mark or len(fields) < 5 or not after:
            continue
        place = fields[4].encode().decode("unicode_escape")  # a space is written \040
        is_above = path == place or path.startswith(place.rstrip("/") + "/")
        if is_above and len(place) >= longest:
            kind, longest = after.split()[0], len(place)
    return kind
