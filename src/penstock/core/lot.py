"""Many drafts of one kind, kept as columns: to make each of them costs more than to send it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from msgspec.structs import replace

from penstock.core.job import Draft


class Lot(Sequence[Draft]):
    """Drafts that differ in their ids and payloads only. Each is made when somebody asks for it."""

    __slots__ = ("first", "ids", "payloads")

    def __init__(self, first: Draft, ids: Sequence[str], payloads: Sequence[bytes]) -> None:
        """``first`` has all that they have in common; its own id and payload do not count."""
        self.first = first
        self.ids = ids
        self.payloads = payloads

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> Draft: ...
    @overload
    def __getitem__(self, index: slice) -> Lot: ...
    def __getitem__(self, index: int | slice) -> Draft | Lot:
        if isinstance(index, slice):
            return Lot(self.first, self.ids[index], self.payloads[index])
        return replace(self.first, id=self.ids[index], payload=self.payloads[index])

    def __iter__(self) -> Iterator[Draft]:
        first = self.first
        for id, payload in zip(self.ids, self.payloads, strict=True):
            yield replace(first, id=id, payload=payload)


def ids_of(drafts: Sequence[Draft]) -> Sequence[str]:
    """The ids of drafts, which are not made for that."""
    return drafts.ids if isinstance(drafts, Lot) else [draft.id for draft in drafts]


def payloads_of(drafts: Sequence[Draft]) -> Sequence[bytes]:
    """Their payloads, likewise."""
    return drafts.payloads if isinstance(drafts, Lot) else [draft.payload for draft in drafts]
