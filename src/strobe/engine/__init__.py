"""One group of views: integrator, blocks and merge wired together, as a pure state machine."""
