"""The life of one generation of a view, from the load to the commit that ends it: a table, no threads, no clock.

A rebuild or an edit is a new generation beside the old one, which is maintained until the same commit that brings the
new one in.
"""

from __future__ import annotations

from enum import Enum

from strobe.pipeline.states import Machine


class ViewState(Enum):
    LOADING = "its table is written, and no header names it"
    CATCHING_UP = "it is loaded, and kept beside the others"
    MEETING = "it is close behind: all come to one vector, and nothing that takes long is begun"
    CUTTING_OVER = "the commit that brings it in is on its way: too late to give up"
    MAINTAINED = "the header names it, and commits move it"
    DETACHED = "a source is down, or a table does not answer: its last right state stays, and log is kept for it"
    STOPPED = "it cannot be kept, for a reason that does not pass by itself"
    RETIRED = "no header names it any more, or ever did: its table is taken back, or kept as it was"


class ViewEvent(Enum):
    LOADED = "loaded"
    CLOSE_BEHIND = "close behind"
    MET = "all stand at one vector"
    DURABLE = "the commit is durable"
    GIVE_UP = "failed, cancelled, or the process restarted"
    SOURCE_DOWN = "a source or table is unavailable"
    SOURCE_BACK = "its sources are verified again, its tables answer"
    STOP = "source, table or log lost, or it does not compile"
    VERIFIED = "what was lost is there again"
    REPLACED = "replaced or dropped"


_S, _E = ViewState, ViewEvent

VIEW: Machine[ViewState, ViewEvent] = Machine(
    "a generation of a view",
    ViewState.LOADING,
    {
        (_S.LOADING, _E.LOADED): _S.CATCHING_UP,
        (_S.LOADING, _E.GIVE_UP): _S.RETIRED,
        (_S.CATCHING_UP, _E.CLOSE_BEHIND): _S.MEETING,
        (_S.CATCHING_UP, _E.GIVE_UP): _S.RETIRED,
        (_S.MEETING, _E.MET): _S.CUTTING_OVER,
        (_S.MEETING, _E.GIVE_UP): _S.RETIRED,
        (_S.CUTTING_OVER, _E.DURABLE): _S.MAINTAINED,
        (_S.CUTTING_OVER, _E.GIVE_UP): _S.RETIRED,
        (_S.MAINTAINED, _E.SOURCE_DOWN): _S.DETACHED,
        (_S.MAINTAINED, _E.STOP): _S.STOPPED,
        (_S.MAINTAINED, _E.REPLACED): _S.RETIRED,
        (_S.DETACHED, _E.SOURCE_BACK): _S.MAINTAINED,
        (_S.DETACHED, _E.STOP): _S.STOPPED,
        (_S.DETACHED, _E.REPLACED): _S.RETIRED,
        (_S.STOPPED, _E.VERIFIED): _S.MAINTAINED,
        (_S.STOPPED, _E.REPLACED): _S.RETIRED,
    },
)
