"""What each kind of document in the control folder says: a document that says anything else is refused.

What a document says beyond its schema is kept as it is: a newer Strobe may say more.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import NotRequired, TypedDict

Schema: TypeAlias = TypeAdapter[Any]

LARGEST = 8 * 2**20
"""Bytes of a document: a heartbeat of some thousands of views fits in."""

_TYPED = with_config(ConfigDict(strict=True, extra="allow"))


@_TYPED
class _Process(TypedDict):
    pid: NotRequired[int]
    host: NotRequired[str]


@_TYPED
class _SourceSaid(TypedDict):
    position: NotRequired[str | None]
    state: NotRequired[str]
    problem: NotRequired[str | None]
    asked: NotRequired[dict[str, Any] | None]


@_TYPED
class _ViewSaid(TypedDict):
    stale: NotRequired[bool]
    level: NotRequired[str]
    algorithm: NotRequired[str]
    queue: NotRequired[int]
    waits_for: NotRequired[list[str]]
    dropped: NotRequired[int]
    compensations: NotRequired[int]
    problem: NotRequired[str | None]
    waits: NotRequired[dict[str, Any] | None]
    rebuild: NotRequired[bool]


@_TYPED
class _Heartbeat(TypedDict):
    pid: NotRequired[int]
    host: NotRequired[str]
    epoch: NotRequired[int]
    stopped: NotRequired[bool]
    sources: NotRequired[dict[str, _SourceSaid]]
    views: NotRequired[dict[str, _ViewSaid]]
    waiting: NotRequired[dict[str, Any] | None]
    appends: NotRequired[dict[str, Any] | None]


@_TYPED
class _Fold(TypedDict):
    kind: Literal["fold"]


@_TYPED
class _Freeze(TypedDict):
    kind: Literal["freeze"]


@_TYPED
class _Renew(TypedDict):
    kind: Literal["renew"]
    freeze: str


@_TYPED
class _Bring(TypedDict):
    kind: Literal["bring"]
    freeze: str
    positions: dict[str, str]


@_TYPED
class _Rebuild(TypedDict):
    kind: Literal["rebuild"]
    views: list[str]


@_TYPED
class _Apply(TypedDict):
    kind: Literal["apply"]
    drop_tables: NotRequired[bool]


@_TYPED
class _Wait(TypedDict):
    kind: Literal["wait"]
    views: list[str]
    seconds: float


@_TYPED
class _Error(TypedDict):
    code: str
    message: str
    where: str
    fix: str


@_TYPED
class _Reply(TypedDict):
    error: NotRequired[_Error]
    commit: NotRequired[int | None]
    freeze: NotRequired[str]
    positions: NotRequired[dict[str, str]]


@_TYPED
class _Round(TypedDict):
    commit: int
    began: float
    parts: Annotated[int, Field(ge=1)]
    next: Annotated[int, Field(ge=0)]
    gap: str


@_TYPED
class _Verified(TypedDict):
    generation: int
    commit: int
    at: float
    round: _Round | None
    problem: str


@_TYPED
class _Progress(TypedDict):
    text: NotRequired[str]
    rows: NotRequired[dict[str, Annotated[list[int | None], Field(min_length=2, max_length=2)]]]


@_TYPED
class _Failure(TypedDict):
    message: NotRequired[str]
    where: NotRequired[str]


PROCESS: Schema = TypeAdapter(_Process)
HEARTBEAT: Schema = TypeAdapter(_Heartbeat)
_Request = Annotated[_Fold | _Freeze | _Renew | _Bring | _Rebuild | _Apply | _Wait, Field(discriminator="kind")]
REQUEST: Schema = TypeAdapter(_Request)
REPLY: Schema = TypeAdapter(_Reply)
PROGRESS: Schema = TypeAdapter(_Progress)
GENERATIONS: Schema = TypeAdapter(dict[str, int], config=ConfigDict(strict=True))
FAILURE: Schema = TypeAdapter(_Failure)
VERIFIED: Schema = TypeAdapter(dict[str, _Verified])
