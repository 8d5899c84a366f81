"""View managers: one algorithm, one module, a pure state machine for one view.

`registry` lists them all, with what each needs, what it guarantees and what it costs; `choice` picks one for a view.
"""
