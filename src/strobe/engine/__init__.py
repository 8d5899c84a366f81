"""Engine: integrator, blocks and merge of all views wired together, as a pure state machine."""
